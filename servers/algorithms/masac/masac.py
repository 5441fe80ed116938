"""MASAC: its settings and its entry. The loop is `team_replay`'s."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from muxrl.servers.algorithms.declared_settings import Check, Positive, Schedule, configured_by
from muxrl.servers.algorithms.joint_critics.algorithm import JointCriticAlgorithm
from muxrl.servers.algorithms.joint_critics.config import JointCriticConfig
from muxrl.servers.algorithms.joint_critics.entry import joint_critic_entry
from muxrl.servers.algorithms.masac.learner import MASACTorchLearner
from muxrl.servers.algorithms.masac.rl_module import MASACTorchRLModule


def _is_entropy(value: Any) -> bool:
    return value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool))


class MASACConfig(JointCriticConfig):
    """Multi-agent soft actor-critic for teams whose members have continuous actions.

    The critics are those of MADDPG (Lowe et al. 2017, arXiv 1706.02275): they see all members and
    their joint action. All else is SAC's (Haarnoja et al. 2018, arXiv 1812.05905).
    """

    alpha_lr: Schedule = 3e-4
    """Learning rate of the temperature."""
    initial_alpha: Positive = 1.0
    """First temperature, the weight of the entropy."""
    target_entropy: Annotated[
        float | Literal["auto"], Check(_is_entropy, "must be a number or 'auto'")
    ] = "auto"
    """Entropy of each member, in -1..1, that the temperature is adapted to; `auto`: minus its
    number of action dimensions."""


@configured_by(MASACConfig, MASACTorchLearner, MASACTorchRLModule)
class MASAC(JointCriticAlgorithm):
    """Trains each module on steps of its teams; see `MASACConfig`.

    RLlib's checkpoint leaves out the temperatures, too: a server saves them.
    """


MASAC_ENTRY = joint_critic_entry(
    "MASAC",
    "SAC for teams, with critics of the joint action (Lowe et al. 2017, Haarnoja et al. 2018)",
    MASACConfig,
)
