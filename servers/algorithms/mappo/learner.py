"""MAPPO's loss, and how a batch is prepared for it."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor
from torch.nn.functional import huber_loss

from muxrl.servers.algorithms.mappo.rl_module import ALIVE, MAPPOTorchRLModule
from muxrl.servers.algorithms.on_policy import LeanUpdate, actor_critic_loss

_SMALLEST_STD = 1e-5
"""Of advantages; the paper's code adds as much."""


class CriticTargets(ConnectorV2):
    """Standardises a batch's advantages, and puts targets and old values into the critic's units.

    It comes after GAE and runs once for all epochs over a batch. Advantages are standardised over
    the steps at which agents acted, which alone train the actor.
    """

    def __call__(
        self, *, rl_module: MultiRLModule, batch: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        for module_id, columns in batch.items():
            module = rl_module[module_id].unwrapped()
            if not isinstance(module, MAPPOTorchRLModule):
                continue
            recorded, acted = _masks(columns)
            advantages, targets = (
                columns[Postprocessing.ADVANTAGES],
                columns[Postprocessing.VALUE_TARGETS],
            )
            if acted.any():
                std = advantages[acted].std(correction=0)
                columns[Postprocessing.ADVANTAGES] = (advantages - advantages[acted].mean()) / (
                    std + _SMALLEST_STD
                )
            module.critic.learn_units(targets[recorded])
            columns[Postprocessing.VALUE_TARGETS] = module.critic.normalize(targets)
            with torch.no_grad():
                columns[Columns.VF_PREDS] = module.normalized_values(columns)
        return batch


class MAPPOTorchLearner(LeanUpdate, PPOTorchLearner):
    """The objectives of Yu et al. 2022, in their appendix: clipped ratio, clipped value, no KL.

    ::

        actor   - mean over acting steps of  min(r A, clip(r, 1 - e, 1 + e) A) + c_e H(pi)
        critic  c_v * mean over all steps of max(huber(V - R), huber(V_old + clip(V - V_old) - R))

    A step at which the agent did not act (``ALIVE`` 0), or not by its policy, trains the critic,
    which has to know what a team still earns without the agent, but not the actor.
    """

    should_standardize_advantages = False  # `CriticTargets` does it

    def build(self) -> None:
        super().build()
        if self._learner_connector is not None and self.is_lean:
            self._learner_connector.append(CriticTargets())

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """The loss above. ``entropy_coeff`` may be a schedule."""
        module = self.module[module_id].unwrapped()
        recorded, acted = _masks(batch)
        advantages = batch[Postprocessing.ADVANTAGES]
        distribution = module.get_train_action_dist_cls().from_logits(
            fwd_out[Columns.ACTION_DIST_INPUTS]
        )
        ratio = torch.exp(distribution.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP])
        clipped = ratio.clamp(1.0 - config.clip_param, 1.0 + config.clip_param)
        policy_loss = -_mean(torch.min(ratio * advantages, clipped * advantages), acted)

        values = module.normalized_values(batch)
        targets = batch[Postprocessing.VALUE_TARGETS]
        value_loss = _huber(values, targets, config.huber_delta)
        if config.vf_clip_param is not None:
            old_values, limit = batch[Columns.VF_PREDS], config.vf_clip_param
            near = old_values + (values - old_values).clamp(-limit, limit)
            value_loss = torch.max(value_loss, _huber(near, targets, config.huber_delta))
        return actor_critic_loss(
            self,
            module_id,
            config,
            policy_loss=policy_loss,
            vf_loss=_mean(value_loss, recorded),
            entropy=_mean(distribution.entropy(), acted),
            values=values[recorded],
            targets=targets[recorded],
        )


def _masks(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Returns which rows are recorded steps, and at which the policy chose an action, bool [B]."""
    recorded = batch.get(Columns.LOSS_MASK)
    if recorded is None:
        recorded = torch.ones_like(batch[Postprocessing.ADVANTAGES], dtype=torch.bool)
    alive = batch[Columns.OBS].get(ALIVE)
    acted = recorded if alive is None else recorded & (alive[..., 0] > 0)
    logp = batch.get(Columns.ACTION_LOGP)  # infinite for an action that was chosen elsewhere
    return recorded, acted if logp is None else acted & ~logp.isinf()


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    # A minibatch may hold no step at which an agent acted; then the actor's loss is 0.
    return x[mask].sum() / mask.sum().clamp(min=1)


def _huber(values: Tensor, targets: Tensor, delta: float | None) -> Tensor:
    """Elementwise; half the squared error where that is below `delta`, or everywhere."""
    if delta is None:
        return 0.5 * (values - targets).square()
    return huber_loss(values, targets, reduction="none", delta=delta)
