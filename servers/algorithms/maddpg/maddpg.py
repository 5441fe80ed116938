"""MADDPG and MATD3: their settings and their entry. The loop is `team_replay`'s."""

from __future__ import annotations

from typing import Annotated

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.algorithms.declared_settings import (
    Count,
    NotNegative,
    Schedule,
    ScheduleCheck,
    configured_by,
)
from muxrl.servers.algorithms.joint_critics.algorithm import JointCriticAlgorithm
from muxrl.servers.algorithms.joint_critics.config import JointCriticConfig
from muxrl.servers.algorithms.joint_critics.entry import joint_critic_entry
from muxrl.servers.algorithms.maddpg.learner import MADDPGTorchLearner
from muxrl.servers.algorithms.maddpg.rl_module import (
    EXPLORATION_NOISE,
    TWIN_CRITICS,
    MADDPGTorchRLModule,
)


class MADDPGConfig(JointCriticConfig):
    """MATD3 (Ackermann et al. 2019, arXiv 1910.01465), or with three switches off MADDPG.

    MADDPG (Lowe et al. 2017, arXiv 1706.02275) has ``twin_critics=False``, ``policy_delay=1`` and
    ``target_noise=0.0``. Unlike theirs, a team has one reward, so all members share the critics,
    and an actor that is told who it acts for.
    """

    module_settings = (*JointCriticConfig.module_settings, TWIN_CRITICS, EXPLORATION_NOISE)

    exploration_noise: Annotated[Schedule, ScheduleCheck()] = [(0, 0.5), (50_000, 0.1)]
    """Standard deviation of the noise in training, in units of actions in -1..1; a number or a
    schedule."""
    policy_delay: Count = 2
    """Updates of the critics for each of actor and targets."""
    # Those of TD3 (Fujimoto et al. 2018), which MATD3 takes over.
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the actions that targets value; 0: none."""
    target_noise_clip: NotNegative = 0.5
    """Largest size of that noise."""
    twin_critics: bool = True
    """Whether targets take the lower value of two critics."""


@configured_by(MADDPGConfig, MADDPGTorchLearner, MADDPGTorchRLModule)
class MADDPG(JointCriticAlgorithm):
    """Trains each module on steps of its teams; see `MADDPGConfig`."""

    exploration_setting = EXPLORATION_NOISE


MADDPG_ENTRY = joint_critic_entry(
    "MADDPG",
    "deterministic policies for teams, critics of the joint action (Lowe et al. 2017), as MATD3 "
    "(Ackermann et al. 2019)",
    MADDPGConfig,
    (Box, Discrete),
    samples_actions=False,
)
