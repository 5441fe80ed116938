"""QMIX, VDN and independent Q-learning on a server: one config with three mixers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.servers.algorithms.agent_spaces import agent_text
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import own_module_problem
from muxrl.servers.algorithms.qmix.qmix import QMIXConfig
from muxrl.servers.algorithms.qmix.seats import TeamSeating
from muxrl.servers.algorithms.settings import AlgorithmProblem, TrainingSettings
from muxrl.servers.seating import keys_of
from muxrl.servers.teams import TEAM_KEYS, TeamProblem, check_member_spaces

_UNUSED = frozenset(
    {
        "grad_clip_by",
        "minibatch_size",
        "num_epochs",
        "rollout_fragment_length",
        "shuffle_batch_per_epoch",
        "train_batch_size",
        "train_batch_size_per_learner",
    }
)


class TeamNetworks:
    """The networks of a team, which are set among the training settings."""

    def settings(self) -> dict[str, Any]:
        """There are none."""
        return {}

    def configure(
        self,
        config: AlgorithmConfig,
        algorithm: str,
        model: Mapping[str, Any],
        rl_module: str,
        *,
        has_masks: bool,
    ) -> None:
        """Sets nothing; see `Networks.configure` for what is refused."""
        if rl_module:
            raise own_module_problem(
                algorithm, rl_module, "its mixer and its members' networks belong together"
            )
        if model:
            name = next(iter(model))
            raise AlgorithmProblem(
                f"{algorithm} has no separate model settings ({name!r} was given): its "
                "networks are set by agent, hidden_dim, mixing_embed_dim and hypernet_embed "
                "among its settings"
            )


def check_team_spaces(
    algorithm: str,
    policy_id: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    agent_id: str | None,
) -> None:
    """Checks the spaces of a team, or of one member; see `AlgorithmEntry.check_spaces`."""
    if keys_of(observation_space) == set(TEAM_KEYS):
        return
    try:
        check_member_spaces(agent_id or "?", observation_space, action_space)
    except TeamProblem as problem:
        who = agent_text(policy_id, agent_id)
        if isinstance(action_space, spaces.Discrete) and action_space.start == 0:
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {algorithm} cannot read the observation space "
                f"{observation_space} of agent {who}: it takes a one-dimensional Box; flatten "
                "the observation first"
            ) from problem
        raise AlgorithmProblem(
            f"policy {policy_id!r}: {algorithm} cannot do the action space {action_space} of "
            f"agent {who}: it learns one value per discrete action, counted from 0; use PPO "
            "or A2C"
        ) from problem


def _entry(name: str, summary: str, preset: Mapping[str, Any]) -> AlgorithmEntry:
    return AlgorithmEntry(
        name=name,
        summary=summary,
        learns_from="replay",
        training=TrainingSettings(QMIXConfig, preset=preset, unused=_UNUSED),
        networks=TeamNetworks(),
        seating=TeamSeating(),
        space_check=check_team_spaces,
        samples_actions=False,
    )


QMIX = _entry("QMIX", "monotonic value mixing for teams (Rashid et al. 2018)", {})
VDN = _entry("VDN", "sum of values for teams (Sunehag et al. 2017)", {"mixer": "vdn"})
IQL = _entry("IQL", "independent Q-learning on the team's reward (Tan 1993)", {"mixer": "none"})
