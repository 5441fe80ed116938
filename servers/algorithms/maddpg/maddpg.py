"""MADDPG and MATD3: their settings and their entry. The loop is `team_replay`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from gymnasium import spaces
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from muxrl.servers.algorithms.joint_critics.config import JointCriticConfig
from muxrl.servers.algorithms.joint_critics.entry import joint_critic_entry
from muxrl.servers.algorithms.joint_critics.learner import to_sample_batch
from muxrl.servers.algorithms.joint_critics.step_replay import StepReplay
from muxrl.servers.algorithms.maddpg.learner import MADDPGTorchLearner
from muxrl.servers.algorithms.maddpg.rl_module import (
    EXPLORATION_NOISE,
    TWIN_CRITICS,
    MADDPGTorchRLModule,
)
from muxrl.servers.algorithms.settings import set_given
from muxrl.servers.algorithms.team_replay.algorithm import TeamReplayAlgorithm
from muxrl.servers.algorithms.team_replay.config import Schedule


class MADDPGConfig(JointCriticConfig):
    """MATD3 (Ackermann et al. 2019, arXiv 1910.01465), or with three switches off MADDPG.

    MADDPG (Lowe et al. 2017, arXiv 1706.02275) has ``twin_critics=False``, ``policy_delay=1`` and
    ``target_noise=0.0``. Unlike theirs, a team has one reward, so all members share the critics,
    and an actor that is told who it acts for.
    """

    needs_positive_counts = (*JointCriticConfig.needs_positive_counts, "policy_delay")

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or MADDPG)
        self.twin_critics = True
        self.policy_delay = 2
        # Those of TD3 (Fujimoto et al. 2018), which MATD3 takes over.
        self.target_noise = 0.2
        self.target_noise_clip = 0.5
        self.exploration_noise: Schedule = [(0, 0.5), (50_000, 0.1)]

    def training(
        self,
        *,
        twin_critics: bool = NotProvided,
        policy_delay: int = NotProvided,
        target_noise: float = NotProvided,
        target_noise_clip: float = NotProvided,
        exploration_noise: Schedule = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings; noise is in units of actions in -1..1.

        Args:
            twin_critics: Whether there are two critics, of which targets take the lower value.
            policy_delay: Updates of the critics for each update of actor and targets.
            target_noise: Standard deviation of the noise on the actions that targets value.
            target_noise_clip: Its largest size.
            exploration_noise: Standard deviation of the noise on training's actions; a number, or
                a schedule over env steps.

        Returns:
            This config.
        """
        return set_given(super().training(**kwargs), locals())

    def validate(self) -> None:
        super().validate()
        for name in ("target_noise", "target_noise_clip"):
            if not getattr(self, name) >= 0.0:
                self._value_error(f"{name}={getattr(self, name)} must be at least 0")
        self._check_schedule(EXPLORATION_NOISE)

    def model_settings(self) -> Mapping[str, Any]:
        return {
            **super().model_settings(),
            TWIN_CRITICS: self.twin_critics,
            EXPLORATION_NOISE: self.exploration_noise,
        }

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=MADDPGTorchRLModule)

    def get_default_learner_class(self) -> type:
        return MADDPGTorchLearner


class MADDPG(TeamReplayAlgorithm):
    """Trains each module on steps of its teams; see `MADDPGConfig`."""

    replay_class = StepReplay
    exploration_setting = EXPLORATION_NOISE
    to_sample_batch = staticmethod(to_sample_batch)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return MADDPGConfig()


MADDPG_ENTRY = joint_critic_entry(
    "MADDPG",
    "deterministic policies for teams, critics of the joint action (Lowe et al. 2017), as MATD3 "
    "(Ackermann et al. 2019)",
    MADDPGConfig,
    (spaces.Box, spaces.Discrete),
    samples_actions=False,
)
