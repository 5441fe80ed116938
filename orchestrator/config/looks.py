"""What a network sees of those that it acts for: who can share a policy, and how to say so.

A unit is a team, or an agent in none. Bounds of observations make no difference to a network, so
spaces are compared without them; teams are alike if they have as many members and pad to the same
sizes, and agents with a central critic only if it sees a state of the same length for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from muxrl.orchestrator.config.facts import SimulationFacts
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from muxrl.servers.spaces import split_mask, split_state


class Looks:
    """The units of one server as its networks see them.

    Args:
        facts: the simulation's agents and spaces.
        groups: the teams that are units, with their members.
        views: agent to those whose state its critic sees; empty where critics see no state.
        use_global_state: whether states count; without, observations stand in for them.
    """

    def __init__(
        self,
        facts: SimulationFacts,
        groups: Mapping[str, tuple[str, ...]],
        views: Mapping[str, tuple[str, ...]],
        use_global_state: bool,
    ) -> None:
        self._facts = facts
        self._groups = groups
        self._views = views
        self._use_global_state = use_global_state

    def of(self, unit: str) -> object:
        """Returns what a network sees of a unit; units alike have the same repr."""
        members = self._groups.get(unit)
        if members is not None:
            return self._team(members)
        observation_space, action_space = self._facts.agents[unit]
        look = _without_bounds(observation_space), action_space
        view = self._views.get(unit)
        return look if view is None else (*look, len(view), self._view_size(view))

    def shown(self, unit: str) -> str:
        """Returns a unit's look for a message."""
        members = self._groups.get(unit)
        if members is not None:
            num_members, observation_size, num_actions, state = self._team(members)
            is_observed = self._facts.state_size is None and bool(
                self.state_sizes(members)[members[0]]
            )
            size = f"{num_members} member{'s' if num_members > 1 else ''}"
            return f"{size}, observations of {observation_size}, {num_actions} actions" + (
                f", {shown_state(state)}" if is_observed else ""
            )
        observation_space, action_space = self._facts.agents[unit]
        bounds = ""
        if isinstance(action_space, Box):
            bounds = f" in {action_space.low}..{action_space.high}"
        view = self._views.get(unit)
        seen = "" if view is None else f", {len(view)} in view, a state of {self._view_size(view)}"
        return f"observes {observation_space}, acts {action_space}{bounds}{seen}"

    def state_sizes(self, members: tuple[str, ...]) -> dict[str, int | None]:
        """Returns the length of the state that each member brings to the mixer, None for none."""
        if not self._use_global_state:
            return dict.fromkeys(members)
        if self._facts.state_size is not None:
            return dict.fromkeys(members, self._facts.state_size)
        states = {m: split_state(self._facts.agents[m][0])[1] for m in members}
        return {m: None if state is None else flat_size(state) for m, state in states.items()}

    def _view_size(self, view: tuple[str, ...]) -> int:
        """Returns the length of the state that the critic of one of these agents sees."""
        state = self.state_sizes(view)[view[0]]
        if state is not None:
            return state
        seen = [split_mask(split_state(self._facts.agents[agent][0])[0])[0] for agent in view]
        return sum(map(flat_size, seen))

    def _team(self, members: tuple[str, ...]) -> tuple[int, int, int, int]:
        """Returns a team's size, the lengths of its padded observations, actions and state."""
        spaces = [self._facts.agents[member] for member in members]
        length = max(flat_size(split_mask(split_state(seen)[0])[0]) for seen, _ in spaces)
        state = self.state_sizes(members)[members[0]]
        return (
            len(members),
            length,
            max(flat_size(action) for _, action in spaces),
            len(members) * length if state is None else state,
        )


def shown_state(size: int | None) -> str:
    """Returns the length of a state for a message."""
    return "no state" if size is None else f"a state of {size} numbers"


def flat_size(space: Space) -> int:
    """Returns the length of a value of `space` as one flat array, integers one-hot."""
    if isinstance(space, Box):
        return math.prod(space.shape)
    if isinstance(space, Discrete | MultiBinary):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    return sum(
        map(flat_size, space.spaces.values() if isinstance(space, DictSpace) else space.spaces)
    )


def _without_bounds(space: Space) -> Space:
    if isinstance(space, Box):
        return Box(space.shape, space.dtype)
    if isinstance(space, DictSpace):
        return DictSpace({key: _without_bounds(sub) for key, sub in space.spaces.items()})
    if isinstance(space, TupleSpace):
        return TupleSpace(tuple(map(_without_bounds, space.spaces)))
    return space
