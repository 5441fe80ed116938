"""How a server's agents become RLlib's: alone, as a team, or each with its team's state.

An algorithm names its seating. `Seating` itself, with an RLlib agent and an observation for each
agent, is that of most algorithms; QMIX and MAPPO bring their own. The config asks it which agents
can share a policy, the server for its seats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space
from muxrl.servers.agents.action_forms import ActionForm, action_form
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.solo_seats import SoloSeat
from muxrl.servers.agents.spaces import (
    ACTION_MASK_KEY,
    STATE_KEY,
    flat_size,
    split_mask,
    split_state,
    without_bounds,
)
from muxrl.servers.config import AgentPlan, ServerPlan


@dataclass(frozen=True)
class PolicySignature:
    """What a network sees of a team, or of an agent in none.

    Attributes:
        key: units with equal keys can share a policy. Bounds of observations are not in it: they
            make no difference to a network.
        text: for messages.
    """

    key: object
    text: str


@dataclass(frozen=True)
class Seating:
    """Every agent is an RLlib agent of its own and learns alone.

    Attributes:
        follows_masks: whether the networks get an action mask apart from the rest of the
            observation; else the mask is flattened with it.
        shares_policies: whether agents that look alike to a network may share it.
        acts_in_one_choice: whether several choices become one, with a value for each combination.
    """

    follows_masks: bool = False
    shares_policies: bool = True
    acts_in_one_choice: bool = False

    is_joint: ClassVar[bool] = False
    """Whether groups of agents, and the global state, mean something to it."""
    forms_teams: ClassVar[bool] = False
    """Whether a group is one RLlib agent with one policy."""

    def has_made(self, observation_space: Any) -> bool:
        """Whether a module's observation space, Gymnasium's too, is of this seating."""
        keys = keys_of(observation_space)
        return keys == {OBS, ACTION_MASK} if self.follows_masks else not keys

    def complete_groups(
        self, groups: Mapping[str, tuple[str, ...]], agents: list[str]
    ) -> dict[str, tuple[str, ...]]:
        """Returns a user's groups, and those that agents outside of them form."""
        return dict(groups)

    def with_groups(self, plan: ServerPlan) -> ServerPlan:
        """Returns a plan whose groups are complete."""
        groups = self.complete_groups(plan.groups, list(plan.agents))
        group_of = {member: group for group, members in groups.items() for member in members}
        agents = {a: replace(agent, group=group_of.get(a)) for a, agent in plan.agents.items()}
        return replace(plan, groups=groups, agents=agents)

    def signature(self, unit: str, plan: ServerPlan) -> PolicySignature:
        """What a network sees of a unit: of a team if `forms_teams`, else of an agent.

        Args:
            unit: a group or an agent.
            plan: all agents are in it; policies need not be.
        """
        agent = plan.agents[unit]
        bounds = ""
        if isinstance(agent.action_space, Box):
            bounds = f" in {agent.action_space.low}..{agent.action_space.high}"
        return PolicySignature(
            repr((without_bounds(agent.observation_space), agent.action_space)),
            f"observes {agent.observation_space}, acts {agent.action_space}{bounds}",
        )

    def network_space(self, agent: AgentPlan) -> Space:
        """Returns the part of an agent's observation space that its network flattens."""
        space = agent.observation_space
        return split_mask(space)[0] if self.follows_masks else space

    def action_form(self, agent: AgentPlan) -> ActionForm:
        """Returns how an agent's actions become those of its network."""
        return action_form(agent.action_space, as_one_choice=self.acts_in_one_choice)

    def find_mask_problem(self, agent_id: str, agent: AgentPlan) -> str | None:
        """Says why an agent's mask does not fit its actions, if it does not."""
        space = (
            split_state(agent.observation_space)[0] if self.is_joint else agent.observation_space
        )
        if not self.follows_masks or not split_mask(space)[1]:
            return None
        assert isinstance(space, DictSpace)
        mask, actions = space.spaces[ACTION_MASK_KEY], agent.action_space
        num_actions = sum(action_form(actions).choices)
        if num_actions and flat_size(mask) == num_actions and not isinstance(mask, Discrete):
            return None
        expected = f"{num_actions} numbers" if num_actions else "none, where none is an integer"
        return (
            f"agent {agent_id!r} observes the action mask {mask}, but acts {actions}; a mask has "
            f"one number for each action, of several choices one choice after another: {expected}"
        )

    def unread(self, about: Mapping[str, Any]) -> frozenset[str]:
        """Returns the parts of an observation that no actor reads, by its checkpoint's note."""
        return frozenset({STATE_KEY})

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        """Yields a sentence for each reason why the agents cannot learn together."""
        yield from ()

    def make_seats(self, plan: ServerPlan, observing: Observing | None = None) -> dict[str, Seat]:
        """Returns a server's seats by id.

        Args:
            plan: the server.
            observing: how observations are read; None: as the plan says.
        """
        observing = observing or Observing.of(plan)
        return {
            agent_id: SoloSeat(
                agent_id,
                agent,
                observing,
                form=self.action_form(agent),
                follows_mask=self.follows_masks,
            )
            for agent_id, agent in plan.agents.items()
        }


def keys_of(space: Any) -> set[str]:
    """Returns the keys of a Dict space, Gymnasium's too, none for any other."""
    parts = getattr(space, "spaces", None)
    return set(parts) if isinstance(parts, Mapping) else set()


def state_sizes(plan: ServerPlan, members: tuple[str, ...]) -> dict[str, int | None]:
    """Returns the length of the state that each member brings to a mixer or critic, None for none.

    It is the simulation's, if that sends one, else the one that the member observes.
    """
    if not plan.use_global_state:
        return dict.fromkeys(members)
    if plan.state_size is not None:
        return dict.fromkeys(members, plan.state_size)
    states = {m: split_state(plan.agents[m].observation_space)[1] for m in members}
    return {m: None if state is None else flat_size(state) for m, state in states.items()}


def find_state_problem(group: str, members: tuple[str, ...], plan: ServerPlan) -> str | None:
    """Says which members of a group observe states of different lengths, if any do."""
    sizes = state_sizes(plan, members)
    other = next((m for m in members if sizes[m] != sizes[members[0]]), None)
    if other is None:
        return None
    return (
        f"group {group!r}: agent {members[0]!r} observes {state_text(sizes[members[0]])}, agent "
        f"{other!r} {state_text(sizes[other])}; a team has one state, so give all members the "
        "same 'state', or set use_global_state: false"
    )


def state_text(size: int | None) -> str:
    """Returns the length of a state for a message."""
    return "no state" if size is None else f"a state of {size} numbers"
