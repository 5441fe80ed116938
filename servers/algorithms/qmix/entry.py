"""QMIX, VDN, QPLEX and independent Q-learning on a server: one config with four mixers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.agents.action_forms import MAX_COMBINATIONS
from muxrl.servers.agents.seating import TEAMS, keys_of
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.teams import TEAM_KEYS
from muxrl.servers.algorithms.entry import AlgorithmEntry, SpaceProblem, integers_need_bounds
from muxrl.servers.algorithms.milestones import FIRST_COPY, Milestone
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.qmix.export import MemberGraph
from muxrl.servers.algorithms.qmix.qmix import QMIXConfig
from muxrl.servers.algorithms.qmix.rl_module import member_network
from muxrl.servers.algorithms.replay_size import ReplaySize, of_episodes
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.algorithms.team_replay.budget import after_updates

_NETWORKS = Networks(
    model_refused="its networks are set by agent, hidden_dim, mixing_embed_dim and hypernet_embed "
    "among its settings",
    own_module_refused="its mixer and its members' networks belong together",
)


def check_team_spaces(observation_space: Space, action_space: Space) -> SpaceProblem | None:
    """A `SpaceCheck` of a team's spaces, or of one member's."""
    if keys_of(observation_space) == set(TEAM_KEYS):
        return None
    if not isinstance(action_space, Discrete):
        return "action", (
            "it learns one value per discrete action, or per combination of several, up to "
            f"{MAX_COMBINATIONS}{integers_need_bounds(action_space)}"
        )
    if not isinstance(observation_space, Box) or len(observation_space.shape) != 1:
        return "observation", "it takes a one-dimensional Box; flatten the observation first"
    return None


def find_milestones(config: QMIXConfig) -> Iterator[Milestone]:
    """Yields the first update, and the first copy to the target network, after so many episodes."""
    yield after_updates(config, 1)
    if config.tau == 1.0:
        copying = ("target_update_freq",)
        yield after_updates(config, config.target_update_freq, what=FIRST_COPY, settings=copying)


def find_replay_size(config: QMIXConfig, seats: Mapping[str, Seat]) -> ReplaySize:
    """Returns what the replays store of the teams."""
    return of_episodes(
        seats,
        config.buffer_capacity_episodes,
        "buffer_capacity_episodes",
        longest=config.max_sequence_steps,
        batch_size=config.batch_size_episodes,
    )


def _entry(name: str, summary: str, preset: Mapping[str, Any]) -> AlgorithmEntry:
    return AlgorithmEntry(
        name=name,
        summary=summary,
        learns_from="replay",
        training=TrainingSettings(
            QMIXConfig, preset, unused=frozenset({"rollout_fragment_length"})
        ),
        networks=_NETWORKS,
        seating=TEAMS,
        space_check=check_team_spaces,
        samples_actions=False,
        graph=MemberGraph,
        acting_network=member_network,
        milestones=find_milestones,
        replay_size=find_replay_size,
        joins_members=lambda config: config.mixer != "none",
    )


QMIX_ENTRY = _entry("QMIX", "monotonic value mixing for teams (Rashid et al. 2018)", {})
VDN_ENTRY = _entry("VDN", "sum of values for teams (Sunehag et al. 2017)", {"mixer": "vdn"})
QPLEX_ENTRY = _entry(
    "QPLEX", "duplex dueling value mixing for teams (Wang et al. 2021)", {"mixer": "qplex"}
)
IQL_ENTRY = _entry(
    "IQL", "independent Q-learning on the team's reward (Tan 1993)", {"mixer": "none"}
)
