"""Seats: the agents of a server's episodes as RLlib records them.

A QMIX team is one agent to RLlib, and several to the simulation. A seat is an agent in RLlib's
sense: an agent alone (`SoloSeat`) or a team (`TeamSeat`). Seats are made once for a server; what
changes in an episode is in `SeatRecord`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from ray.rllib.utils.spaces.space_utils import normalize_action, unsquash_action

from muxrl.protocol.errors import ValueMismatch
from muxrl.servers.algorithms.action_masks import ACTION_MASK, OBS, masked_space
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.spaces import (
    ACTION_MASK_KEY,
    STATE_KEY,
    module_observation_reader,
    module_observation_space,
    split_mask,
    split_state,
    to_gymnasium,
    without_mask,
    without_state,
)
from muxrl.servers.teams import NO_ACTION, TeamProblem, TeamSpec, team_reward


class StepView(NamedTuple):
    """What the simulation shows in one step, to all seats."""

    observations: Mapping[str, Any]
    state: Any = None
    """The simulation's global state, if it has been asked for."""
    departed: Collection[str] = ()
    """Agents that are done by now."""


class SeatRequest(NamedTuple):
    """What a policy is asked: one seat's action in one step."""

    seat: Seat
    observation: Any
    module_state: Any = None
    """Recurrent state after the seat's last action; None: the module's initial one."""
    logged_action: Any = None
    """The action, where it was chosen elsewhere; see `Seat.read_logged`."""


class SeatAction(NamedTuple):
    """What a policy answers: the action and all that goes with it."""

    action: Any
    """As the RLModule gave it."""
    extra_outputs: Mapping[str, Any] = MappingProxyType({})
    """What RLlib wants recorded with it (log-probability and the like)."""
    module_state: Any = None
    """Recurrent state after it; None where the module has none."""


@dataclass(slots=True)
class SeatRecord:
    """What is remembered of a seat in one episode."""

    module_state: Any = None
    """Recurrent state after the last action; None: the module's initial one."""
    last_actions: dict[str, Any] = field(default_factory=dict)
    """Members' last actions, as sent to the simulation."""
    members_done: set[str] = field(default_factory=set)
    has_begun: bool = False
    is_done: bool = False


class Seat(Protocol):
    """One agent in RLlib's sense."""

    seat_id: str
    policy_id: str
    members: tuple[str, ...]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        """Returns the recorded observation, or None if no member observes in this step."""

    def reward(self, rewards: Mapping[str, float]) -> float:
        """Returns the recorded reward."""

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        """Returns what goes to the simulation: an action for each acting member."""

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        """Returns the recorded form of actions that were chosen elsewhere, None if none were.

        For a team, members that act by their policy have `NO_ACTION`.
        """


class SoloSeat:
    """An agent that is recorded under its own name.

    Args:
        agent_id: the agent.
        plan: its own.
        follows_mask: whether an action mask is kept apart from the rest of the observation, as
            `masked_space` says, or is flattened with it.
    """

    def __init__(self, agent_id: str, plan: AgentPlan, *, follows_mask: bool = False) -> None:
        self.seat_id = agent_id
        self.policy_id = plan.policy_id
        self.members: tuple[str, ...] = (agent_id,)
        space, has_mask = split_mask(plan.observation_space)
        self._is_masked = follows_mask and has_mask
        if not self._is_masked:
            space = plan.observation_space
        self.observation_space: gymnasium.Space = module_observation_space(space)
        self.action_space = to_gymnasium(plan.action_space)
        if self._is_masked:
            self.observation_space = masked_space(self.observation_space, self.action_space)
        self._read = module_observation_reader(space)
        self._to_env = _action_writer(self.action_space)

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        value = step_view.observations.get(self.seat_id)
        if value is None or not self._is_masked:
            return None if value is None else self._read(value)
        mask = np.asarray(value[ACTION_MASK_KEY], np.float32)
        if not mask.any():
            raise ValueMismatch(
                f"the action mask of agent {self.seat_id!r} forbids every action; leave an agent "
                "that cannot act out of the observations, or give it an action that does nothing",
                agent_id=self.seat_id,
                expected="a mask with at least one action available",
                got="none available",
            )
        return {OBS: self._read(without_mask(value)), ACTION_MASK: mask}

    def reward(self, rewards: Mapping[str, float]) -> float:
        return rewards.get(self.seat_id, 0.0)

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        return {self.seat_id: self._to_env(action)}

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        value = logged.get(self.seat_id)
        if value is None:
            return None
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            return int(value) - int(self.action_space.start)
        if isinstance(self.action_space, gymnasium.spaces.Box) and self.action_space.is_bounded(
            "both"
        ):
            return normalize_action(value, self.action_space)
        return value


class TeamSeat:
    """A team that is recorded as one agent, named after its group."""

    def __init__(self, group: str, plan: ServerPlan) -> None:
        self.seat_id = group
        self.members = plan.groups[group]
        self._plans = {m: plan.agents[m] for m in self.members}
        self.policy_id = self._plans[self.members[0]].policy_id
        self._how = plan.team_reward
        self._has_state = plan.state_size is not None
        self._refuses_late = plan.late_members == "refuse"
        self._state_readers: dict[str, Callable[[Any], np.ndarray]] = {}
        self._masked: set[str] = set()
        self._readers: dict[str, Callable[[Any], np.ndarray]] = {}
        observation_spaces: dict[str, gymnasium.Space] = {}
        state_size = plan.state_size
        for member, agent in self._plans.items():
            space, state_space = split_state(agent.observation_space)
            if state_space is not None:
                self._state_readers[member] = _flat(module_observation_reader(state_space))
                if plan.state_size is None and plan.use_global_state:
                    state_size = math.prod(module_observation_space(state_space).shape)
            space, has_mask = split_mask(space)
            if has_mask:
                self._masked.add(member)
            observation_spaces[member] = _one_dimensional(module_observation_space(space))
            self._readers[member] = _flat(module_observation_reader(space))
        self.team = TeamSpec(
            self.members,
            observation_spaces,
            {m: to_gymnasium(a.action_space) for m, a in self._plans.items()},
            state_size,
            marks_departed=not self._refuses_late,
        )
        self._is_state_observed = plan.state_size is None and state_size is not None
        self.observation_space: gymnasium.Space = self.team.observation_space
        self.action_space: gymnasium.Space = self.team.action_space

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        mine: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        state = step_view.state if self._has_state else None
        for member in self.members:
            value = step_view.observations.get(member)
            if value is None:
                continue
            if member in self._state_readers:
                if self._is_state_observed and state is None:  # it is the same in all of them
                    state = self._state_readers[member](value[STATE_KEY])
                value = without_state(value)
            if member in self._masked:
                masks[member] = value[ACTION_MASK_KEY]
                value = without_mask(value)
            mine[member] = self._readers[member](value)
        if not mine:
            return None
        if self._refuses_late and not record.has_begun:
            missing = [m for m in self.members if m not in mine and m not in step_view.departed]
            if missing:
                raise ValueMismatch(
                    f"group {self.seat_id!r} acts for the first time in this episode without "
                    f"its member {missing[0]!r}; where members take turns or join late, set "
                    "late_members: allow for the server",
                    agent_id=missing[0],
                    expected=f"observations of {list(self.members)}",
                    got=f"observations of {list(mine)}",
                )
        try:
            return self.team.observe(
                mine, masks or None, state, record.last_actions, step_view.departed
            )
        except TeamProblem as error:
            raise ValueMismatch(f"group {self.seat_id!r}: {error}") from None

    def reward(self, rewards: Mapping[str, float]) -> float:
        mine = {m: rewards[m] for m in self.members if m in rewards}
        return team_reward(mine, self._how, len(self.members)) if mine else 0.0

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        return self.team.split(action, [m for m in self.members if m in acting])

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        if not any(m in logged for m in self.members):
            return None
        return np.array([int(logged.get(m, NO_ACTION)) for m in self.members], dtype=np.int64)


def make_seats(plan: ServerPlan) -> dict[str, Seat]:
    """Returns the seats of a server by id: its groups, then its agents in no group."""
    if plan.is_central:
        # Here, not above: they are built of the seats in this module.
        from muxrl.servers.algorithms.mappo.seats import make_central_seats

        return make_central_seats(plan)
    seats: dict[str, Seat] = {group: TeamSeat(group, plan) for group in plan.groups}
    for agent_id, agent in plan.agents.items():
        if agent.group is None:
            seats[agent_id] = SoloSeat(agent_id, agent, follows_mask=plan.follows_masks)
    return seats


def _action_writer(space: gymnasium.Space) -> Callable[[Any], Any]:
    if isinstance(space, gymnasium.spaces.Discrete):
        start = int(space.start)
        return lambda action: int(action) + start
    if isinstance(space, gymnasium.spaces.Box):
        # Policies act in [-1, 1], RLlib's normalised actions; the simulation's range is wider.
        return lambda action: unsquash_action(np.asarray(action), space)
    return np.asarray


def _one_dimensional(box: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(box.low.ravel(), box.high.ravel(), dtype=np.float32)


def _flat(read: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
    return lambda value: read(value).reshape(-1)
