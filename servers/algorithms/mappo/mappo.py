"""MAPPO: PPO with a centralised critic, on top of RLlib's PPO.

Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (arXiv
2103.01955). Sampling and the loop are PPO's; the networks (`rl_module`) and the loss (`learner`)
are MAPPO's.
"""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.algorithms.ppo.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from muxrl.servers.algorithms.given_settings import set_given
from muxrl.servers.algorithms.mappo.learner import MAPPOTorchLearner
from muxrl.servers.algorithms.mappo.rl_module import MAPPOTorchRLModule


class MAPPOConfig(PPOConfig):
    """Defaults are the paper's for small tasks: ten passes over a batch, no minibatches, no KL.

    Every agent is an RLlib agent of its own, with the Dict observation that `rl_module`
    describes. With a reward that all agents share it is the cooperative MAPPO of the paper, but
    rewards may differ.

    .. code-block:: python

        config = (
            MAPPOConfig()
            .environment("env_with_obs_and_state")
            .multi_agent(policies={"team"}, policy_mapping_fn=lambda *args, **kwargs: "team")
            .training(lr=7e-4)
        )
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or MAPPO)
        self.agent_specific_state = True
        self.obs_agent_id = False
        self.normalize_values = True
        self.huber_delta: float | None = 10.0

        self.lr = 7e-4
        # The paper collects 3,200 (128 environments, 25 steps) for its small tasks.
        self.train_batch_size = 1_000
        self.minibatch_size = None
        self.num_epochs = 10
        self.lambda_ = 0.95
        self.clip_param = 0.2
        self.vf_clip_param = 0.2
        self.vf_loss_coeff = 1.0
        self.entropy_coeff = 0.01
        self.grad_clip = 10.0
        self.num_env_runners = 0

        self.use_kl_loss = False
        self.kl_coeff = 0.0

    def training(
        self,
        *,
        agent_specific_state: bool = NotProvided,
        obs_agent_id: bool = NotProvided,
        normalize_values: bool = NotProvided,
        huber_delta: float | None = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings.

        Args:
            agent_specific_state: Whether the critic sees, beside the state, for whom it values
                it: the agent's one-hot id and its own observation, as the paper suggests. Needed
                where agents that share a policy earn different rewards.
            obs_agent_id: Whether the actor is told its agent's one-hot id, so that agents that
                share a policy can differ though they observe the same.
            normalize_values: Whether the critic learns returns shifted and scaled by their
                running mean and deviation, with PopArt.
            huber_delta: Error, in the critic's units, from which the value loss is linear; None
                is the squared error throughout.
            **kwargs: PPO's. ``vf_clip_param`` has the paper's meaning, not RLlib's: how far a
                value may move from its old one in one update, in the critic's units, before the
                loss stops rewarding it; None does not clip.

        Returns:
            This config.
        """
        set_given(self, locals())
        super().training(**kwargs)
        return self

    def validate(self) -> None:
        super().validate()
        if self.use_kl_loss:
            self._value_error("MAPPO has no KL term: use_kl_loss must be False, or use PPO")
        if not self.use_critic:
            self._value_error("MAPPO is its critic: use_critic must be True")
        for name in ("huber_delta", "vf_clip_param"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                self._value_error(f"{name}={value!r} must be above 0, or None")
        if self.normalize_values and self.num_learners > 1:
            self._value_error(
                f"num_learners={self.num_learners}: with normalize_values MAPPO has one learner, "
                "which alone knows the statistics of the returns; set num_learners to 0 or 1"
            )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=MAPPOTorchRLModule)

    def get_default_learner_class(self) -> type:
        return MAPPOTorchLearner

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {
            "agent_specific_state": self.agent_specific_state,
            "obs_agent_id": self.obs_agent_id,
            "normalize_values": self.normalize_values,
        }


class MAPPO(PPO):
    """See `MAPPOConfig`. The loop is PPO's: sample a batch, update, hand the weights back."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return MAPPOConfig()
