"""What the entries of algorithms with critics of the joint action say alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muxrl.protocol.spaces import Box, Space
from muxrl.servers.agents.seating import keys_of
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.entry import AgentSpaces, AlgorithmEntry, SpaceProblem
from muxrl.servers.algorithms.joint_critics.config import JointCriticConfig
from muxrl.servers.algorithms.joint_critics.export import MemberActorGraph
from muxrl.servers.algorithms.joint_critics.teams import VECTOR_TEAMS, are_team_keys
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.replay_size import ReplaySize, of_steps
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.algorithms.team_replay.budget import find_first_update


def joint_critic_entry(
    name: str,
    summary: str,
    config_class: type[JointCriticConfig],
    actions: tuple[type[Space], ...] = (Box,),
    **fields: Any,
) -> AlgorithmEntry:
    """Returns the entry of an algorithm.

    Args:
        name, summary: of `AlgorithmEntry`, as `fields` are.
        config_class: its RLlib config.
        actions: the kinds of action space that members may have.
    """
    of_member = AgentSpaces(actions, can_act_unbounded=False)
    return AlgorithmEntry(
        name=name,
        summary=summary,
        learns_from="replay",
        training=TrainingSettings(config_class),
        networks=Networks(
            model_refused="its networks are set by hidden_dim and obs_agent_id among its settings",
            own_module_refused="its members' actor and its critics of all members belong together",
        ),
        seating=VECTOR_TEAMS,
        space_check=lambda seen, acted: check_team_spaces(of_member, seen, acted),
        graph=MemberActorGraph,
        milestones=find_first_update,
        replay_size=find_replay_size,
        **fields,
    )


def check_team_spaces(
    of_member: AgentSpaces, observation_space: Space, action_space: Space
) -> SpaceProblem | None:
    """A `SpaceCheck` of a team's spaces, or of one member's."""
    if are_team_keys(keys_of(observation_space)):
        return None
    return of_member(observation_space, action_space)


def find_replay_size(config: JointCriticConfig, seats: Mapping[str, Seat]) -> ReplaySize:
    """Returns what the replays store of the teams."""
    return of_steps(seats, config.buffer_capacity_steps, "buffer_capacity_steps", "team steps")
