"""A2C: synchronous advantage actor-critic, on top of RLlib's PPO.

The synchronous form of A3C, Mnih et al. 2016 (arXiv 1602.01783), algorithm S3. Sampling, the
networks and the loop are PPO's; the loss and the advantages are A2C's.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPO
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from muxrl.servers.agents.seating import MASKED_AGENTS
from muxrl.servers.algorithms.declared_settings import configured_by
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.on_policy.config import OnPolicyConfig
from muxrl.servers.algorithms.on_policy.learner import (
    LeanUpdate,
    actor_critic_loss,
    advantages_of_own_actions,
    mean_over,
)
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.rllib.action_masks import MaskablePPOTorchRLModule


class A2CConfig(OnPolicyConfig):
    """One update per batch, on the whole of it: no epochs, no minibatches, no ratio, no KL.

    ``train_batch_size_per_learner`` is the number of env steps between two updates. With
    ``lambda_=1`` (default) advantages are n-step returns up to the end of the batch, as in the
    paper; below 1 they are GAE's.

    .. code-block:: python

        config = A2CConfig().environment("CartPole-v1").training(lr=1e-3, entropy_coeff=0.01)
    """

    lr = 1e-3
    train_batch_size = 200
    lambda_ = 1.0
    vf_loss_coeff = 0.5
    entropy_coeff = 0.01
    grad_clip = 40.0
    optimizer_epsilon = 1e-8  # torch's
    # One result per about so many env steps, not one per update.
    min_sample_timesteps_per_iteration = 1_000

    standardize_advantages: bool = False
    """Whether a batch's advantages are shifted to mean 0 and scaled to deviation 1."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.num_env_runners = 0
        self.num_epochs = 1
        self.minibatch_size = None
        self.shuffle_batch_per_epoch = False
        self.use_kl_loss = False
        self.kl_coeff = 0.0
        self.vf_clip_param = None

    def validate(self) -> None:
        super().validate()
        if self.num_epochs != 1 or self.minibatch_size is not None:
            self._value_error(
                f"A2C makes one update per batch, on the whole of it: num_epochs="
                f"{self.num_epochs} must be 1 and minibatch_size={self.minibatch_size} None; "
                "a second pass would be off-policy without PPO's ratio"
            )
        if self.use_kl_loss:
            self._value_error("A2C has no KL term: use_kl_loss must be False, or use PPO")
        if not self.use_critic:
            self._value_error("A2C needs its critic: use_critic must be True")


class A2CTorchLearner(LeanUpdate, PPOTorchLearner):
    """``-log pi(a|s) A + c_v (V(s) - R)^2 - c_e H(pi)``, averaged over the batch.

    The env runners need not record ``action_logp`` and ``action_dist_inputs``; without the former,
    all actions are taken for the policy's own. Padding, and the
    bootstrap step that RLlib appends to each chunk, are masked out.
    """

    def build(self) -> None:
        self.should_standardize_advantages = self.config.standardize_advantages
        super().build()

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """The loss above; Mnih et al. 2016, section 4 ("Asynchronous advantage actor-critic").

        No gradient flows through the advantages. ``entropy_coeff`` may be a schedule.
        """
        module = self.module[module_id].unwrapped()
        mask, mean = batch.get(Columns.LOSS_MASK), mean_over(batch)
        distribution = module.get_train_action_dist_cls().from_logits(
            fwd_out[Columns.ACTION_DIST_INPUTS]
        )
        values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        returns = batch[Postprocessing.VALUE_TARGETS]
        log_probability = distribution.logp(batch[Columns.ACTIONS])
        policy_loss = -mean(log_probability * advantages_of_own_actions(batch))
        return actor_critic_loss(
            self,
            module_id,
            config,
            policy_loss=policy_loss,
            vf_loss=mean((values - returns).square()),
            entropy=mean(distribution.entropy()),
            values=values if mask is None else values[mask],
            targets=returns if mask is None else returns[mask],
        )


@configured_by(A2CConfig, A2CTorchLearner)
class A2C(PPO):
    """See `A2CConfig`. The loop is PPO's: sample a batch, update, hand the weights back."""


A2C_ENTRY = AlgorithmEntry(
    name="A2C",
    summary="synchronous advantage actor-critic (Mnih et al. 2016)",
    learns_from="newest",
    training=TrainingSettings(A2CConfig),
    networks=Networks(module=MaskablePPOTorchRLModule),
    seating=MASKED_AGENTS,
)
