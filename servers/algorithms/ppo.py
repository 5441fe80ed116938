"""Proximal policy optimisation: RLlib's algorithm and loss, with a lean update."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_KL_KEY as KL
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY as VF_EXPLAINED_VAR
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY as VF_LOSS_UNCLIPPED
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.torch_utils import explained_variance
from torch import Tensor

from muxrl.servers.agents.seating import MASKED_AGENTS
from muxrl.servers.algorithms.declared_settings import Limit
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.on_policy.config import ClippedRatioConfig
from muxrl.servers.algorithms.on_policy.learner import (
    LeanUpdate,
    advantages_of_own_actions,
    mean_over,
)
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.rllib.action_masks import MaskablePPOTorchRLModule


class LeanPPOTorchLearner(LeanUpdate, PPOTorchLearner):
    """RLlib's learner, with `LeanUpdate` for modules without a state."""

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """RLlib's loss and metrics, with fewer operations on tensors.

        Actions that were chosen elsewhere have no weight in the policy's part.
        """
        module = self.module[module_id].unwrapped()
        mean = mean_over(batch)
        logp, entropy, kl = policy_terms(
            module, fwd_out[Columns.ACTION_DIST_INPUTS], batch, needs_kl=config.use_kl_loss
        )
        advantages = advantages_of_own_actions(batch)
        ratio = (logp - batch[Columns.ACTION_LOGP]).exp()
        clipped = ratio.clamp(1.0 - config.clip_param, 1.0 + config.clip_param)
        surrogate = torch.min(advantages * ratio, advantages * clipped)

        targets = batch[Postprocessing.VALUE_TARGETS]
        if config.use_critic:
            values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
            squares = (values - targets).square()
        else:
            values = squares = torch.zeros_like(targets)
        vf_loss = (
            squares if config.vf_clip_param is None else squares.clamp(0, config.vf_clip_param)
        )

        entropy_coeff = self.entropy_coeff_schedulers_per_module[module_id].get_current_value()
        loss = mean(config.vf_loss_coeff * vf_loss - surrogate - entropy_coeff * entropy)
        mean_kl = torch.zeros(()) if kl is None else mean(kl)
        if kl is not None:
            loss = loss + self.curr_kl_coeffs_per_module[module_id] * mean_kl
        if self.is_reporting:
            parts = {
                POLICY_LOSS_KEY: -mean(surrogate),
                VF_LOSS_KEY: mean(vf_loss),
                VF_LOSS_UNCLIPPED: mean(squares),
                VF_EXPLAINED_VAR: explained_variance(targets, values),
                ENTROPY_KEY: mean(entropy),
                KL: mean_kl,
            }
            detached = {name: part.detach() for name, part in parts.items()}
            self.metrics.log_dict(detached, key=module_id, window=1)
        return loss


class PPOConfig(ClippedRatioConfig):
    """RLlib's PPO, Schulman et al. 2017 (arXiv 1707.06347), with another learner.

    Advantages are standardised over a batch's transitions. (RLlib includes the step that it adds
    to every piece of an episode to compute the bootstrap value, and still does with an LSTM.)
    """

    kl_coeff: float
    """First weight of the KL penalty; it adapts."""
    kl_target: float
    """KL divergence that the weight is adapted to."""
    use_critic: bool
    """Whether a value function is the baseline."""
    use_kl_loss: bool
    """Whether the KL penalty is used."""
    vf_clip_param: Limit = None
    """Where the squared error of a value is cut off; None: nowhere."""

    def get_default_learner_class(self) -> type:
        return LeanPPOTorchLearner


PPO_ENTRY = AlgorithmEntry(
    name="PPO",
    summary="proximal policy optimisation, RLlib's (Schulman et al. 2017)",
    learns_from="newest",
    training=TrainingSettings(PPOConfig),
    networks=Networks(module=MaskablePPOTorchRLModule),
    seating=MASKED_AGENTS,
)


def policy_terms(
    module: Any, inputs: Tensor, batch: dict[str, Any], *, needs_kl: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the terms of each row, as RLlib's distributions have them, in few operations.

    For Discrete actions, `torch.distributions` normalises the numbers, and makes probabilities of
    them, again for each of these terms. In an update of a small network each operation takes as
    long to start as to compute.

    But of Discrete actions the divergence is finite, also where RLlib's is not, because a
    probability is 0 in float32.

    Args:
        module: says which distributions they are.
        inputs: of the distribution that is learned, ``[..., k]``.
        batch: has ``ACTIONS``, and ``ACTION_DIST_INPUTS`` of the policy that acted.
        needs_kl: whether the last of the terms is wanted.

    Returns:
        Log-probabilities of the actions, entropies, and the divergence of the distribution from
        that of the policy that acted, KL(acted || learned), all ``[...]``.
    """
    learned, acted = module.get_train_action_dist_cls(), module.get_exploration_action_dist_cls()
    if learned is TorchCategorical and acted is TorchCategorical:
        return _categorical_terms(inputs, batch, needs_kl=needs_kl)
    distribution = learned.from_logits(inputs)
    kl = None
    if needs_kl:
        kl = acted.from_logits(batch[Columns.ACTION_DIST_INPUTS]).kl(distribution)
    return distribution.logp(batch[Columns.ACTIONS]), distribution.entropy(), kl


def _categorical_terms(
    logits: Tensor, batch: dict[str, Any], *, needs_kl: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    log_probs = logits.log_softmax(-1)
    actions = batch[Columns.ACTIONS].long().unsqueeze(-1)
    # A masked action's may be infinite; times its probability it is 0.
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    entropy = -(finite * log_probs.exp()).sum(-1)
    kl = None
    if needs_kl:
        acted = batch[Columns.ACTION_DIST_INPUTS].log_softmax(-1)
        probs = acted.exp()
        kl = (probs * (acted - log_probs)).masked_fill(probs == 0, 0.0).sum(-1)
    return log_probs.gather(-1, actions).squeeze(-1), entropy, kl
