"""Seats of teams: one agent of a trainer for each group, as QMIX, VDN, QPLEX and IQL learn.

The format of a team's observations is that of `TeamSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.rows import Lineup, compact
from muxrl.protocol.spaces import Box, Space
from muxrl.servers.agents.action_forms import ActionForm, counted_from_0
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, LAST_ACTION, NO_ACTION, OBS, STATE
from muxrl.servers.agents.masks import NONE_AVAILABLE
from muxrl.servers.agents.memory import Memory, Slots, grid
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.parts import OfKind, Seen, by_kind, places_of
from muxrl.servers.agents.seating import (
    PolicySignature,
    Seating,
    find_state_problem,
    keys_of,
    state_sizes,
    state_text,
)
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import (
    ACTION_MASK_KEY,
    STATE_KEY,
    flat_size,
    split_mask,
    split_state,
    without_mask,
    without_state,
)
from muxrl.servers.agents.teams import TEAM_KEYS, TeamRows, TeamSpec
from muxrl.servers.config import AgentPlan, ServerPlan


@dataclass(frozen=True)
class TeamSeating(Seating):
    """Every group is one RLlib agent with one policy; an agent in no group is a team of its own.

    Teams are alike if they have as many members, and pad observations and actions to the same
    sizes. Their masks are part of a team's observation.
    """

    acts_in_one_choice: bool = True

    is_joint: ClassVar[bool] = True
    forms_teams: ClassVar[bool] = True

    @property
    def seat_class(self) -> type[TeamSeat]:
        """The seat of each group."""
        return TeamSeat

    def has_made(self, observation_space: Any) -> bool:
        return keys_of(observation_space) == set(TEAM_KEYS)

    def complete_groups(
        self, groups: Mapping[str, tuple[str, ...]], agents: list[str]
    ) -> dict[str, tuple[str, ...]]:
        members = {member for group in groups.values() for member in group}
        alone = [a for a in agents if a not in members and a not in groups]
        return {**groups, **{agent: (agent,) for agent in alone}}

    def signature(self, unit: str, plan: ServerPlan) -> PolicySignature:
        members = plan.groups[unit]
        agents = [plan.agents[member] for member in members]
        obs_size = max(flat_size(_own_space(agent)) for agent in agents)
        action_size = max(flat_size(self.action_form(agent).space) for agent in agents)
        state_size = state_sizes(plan, members)[members[0]]
        text = (
            f"{len(members)} member{'s' if len(members) > 1 else ''}, "
            f"observations of {obs_size}, {self._actions_text(action_size)}"
        )
        if plan.state_size is None and state_size:  # the members observe it
            text += f", {state_text(state_size)}"
        if state_size is None:
            state_size = len(members) * obs_size
        return PolicySignature((len(members), obs_size, action_size, state_size), text)

    def _actions_text(self, size: int) -> str:
        return f"{size} actions"

    def network_space(self, agent: AgentPlan) -> Space:
        return Box((flat_size(_own_space(agent)),))

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        for group, members in plan.groups.items():
            if problem := find_state_problem(group, members, plan):
                yield problem

    def make_seats(self, plan: ServerPlan, observing: Observing | None = None) -> dict[str, Seat]:
        """Returns a seat for each group, then one for each agent in none, by id."""
        observing = observing or Observing.of(plan)
        forms = {agent_id: self.action_form(agent) for agent_id, agent in plan.agents.items()}
        seats: dict[str, Seat] = {
            g: self.seat_class(g, plan, observing, forms) for g in plan.groups
        }
        alone = {agent_id: one for agent_id, one in plan.agents.items() if one.group is None}
        return seats | super().make_seats(replace(plan, agents=alone), observing)


class TeamSeat:
    """A team: recorded as one agent that is named after its group.

    Attributes:
        spec: what makes the team's observations and reads its actions.

    Args:
        group: one of the plan's.
        plan: the server.
        observing: how observations and states are read.
        forms: how each agent's actions become those of a network.
    """

    spec: ClassVar[type[TeamRows]] = TeamSpec

    def __init__(
        self,
        group: str,
        plan: ServerPlan,
        observing: Observing,
        forms: Mapping[str, ActionForm],
    ) -> None:
        self.seat_id = group
        self.frame_stack = observing.frame_stack
        self.members = plan.groups[group]
        self._plans = {m: plan.agents[m] for m in self.members}
        self.forms = {m: forms[m] for m in self.members}
        self.policy_id = self._plans[self.members[0]].policy_id
        self._reward_rule = plan.team_reward
        self.has_state = plan.state_size is not None
        self.refuses_late = plan.late_members == "refuse"
        self.state_readers: dict[str, Callable[[Any], np.ndarray]] = {}
        self.masked: set[str] = set()
        self.readers: dict[str, Callable[[Any], np.ndarray]] = {}
        observation_spaces: dict[str, Space] = {}
        state_size = plan.state_size
        self.read_state: Reading | None = None
        if plan.state_size is not None:
            self.read_state = observing.simulation_state_reader(plan.state_size)
        for member, agent in self._plans.items():
            space, state_space = split_state(agent.observation_space)
            if state_space is not None:
                self.state_readers[member] = observing.state_reader(member, state_space)
                if plan.state_size is None and plan.use_global_state:
                    state_size = flat_size(state_space)
            space, has_mask = split_mask(space)
            if has_mask:
                self.masked.add(member)
            observation_spaces[member] = Box((flat_size(space) * self.frame_stack,))
            self.readers[member] = observing.reader(member, space)
        self.team = self.spec(
            self.members,
            observation_spaces,
            {m: counted_from_0(form.space) for m, form in self.forms.items()},
            state_size,
            marks_departed=not self.refuses_late,
            masked=frozenset(self.masked),
        )
        self.is_state_observed = plan.state_size is None and state_size is not None
        self.observation_space: Space = self.team.observation_space
        self.action_space: Space = self.team.action_space

    @property
    def keys(self) -> tuple[str, ...]:
        """What a team's observation consists of."""
        return TEAM_KEYS

    @property
    def part_class(self) -> type[TeamPart]:
        return TeamPart

    def write_rows(self, member: str, actions: np.ndarray) -> Any:
        """Returns rows of the actions of members of a kind, of those of a network."""
        return self.forms[member].write_rows(actions)

    def reward_rows(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the team's rewards ``[E]`` of its members' ``[E, n]``."""
        total = np.zeros(len(rewards))
        for column in rewards.T:  # in the order in which one team's are added, to the last bit
            total += column
        return total if self._reward_rule == "sum" else total / len(self.members)

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        read = {m: form.read(logged[m]) for m, form in self.forms.items() if m in logged}
        return self.team.join(read) if read else None

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        return None  # teams learn values of actions, whoever chose them


class TeamPart:
    """Teams of one policy: see `muxrl.servers.agents.parts`.

    Args:
        seats: of the same policy.
        lineup: some of their members are in it.
    """

    writes_as_is: int | None = None

    def __init__(self, seats: Sequence[TeamSeat], lineup: Lineup) -> None:
        self.seats: tuple[Seat, ...] = tuple(seats)
        self.remembers_actions = LAST_ACTION in seats[0].keys
        self.policy_id = seats[0].policy_id
        self._teams = [_TeamInRows(seat, lineup) for seat in seats]

    def observe(self, seen: Seen) -> Any:
        found = [team.observe(seen) for team in self._teams]
        return {key: _side_by_side([team[key] for team in found]) for key in found[0]}

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        return _side_by_side([team.reward(rewards) for team in self._teams])

    def write(self, actions: np.ndarray, into: list[Any]) -> None:
        for i, team in enumerate(self._teams):
            team.write(actions[:, i], into)

    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        for i, team in enumerate(self._teams):
            team.remember(actions[:, i], memory, where)


class _TeamInRows:
    """One team in the rows of a lineup."""

    def __init__(self, seat: TeamSeat, lineup: Lineup) -> None:
        members = list(seat.members)
        self._seat = seat
        self._spec = seat.team
        seen = [m for m in members if m in lineup.agents]
        here = [m in seen for m in members]
        self._missing = [m for m in members if m not in seen]
        self._places = places_of(seen, lineup)
        self._all_places = places_of(members, lineup)
        self._missing_places = places_of(self._missing, lineup)
        self._here = compact(np.flatnonzero(here))
        self._is_whole = all(here)
        self._alive = np.array(here, np.float32)
        self._masks = self._spec.masks_of(here)
        self._same = self._alive[None], self._masks[None]
        self._seen = by_kind(members, lineup.observed, lineup)
        self._acts = by_kind(members, lineup.acted, lineup)
        self._state: tuple[OfKind, Callable[[Any], np.ndarray]] | None = None
        """Of the first member that observes the state."""
        if seat.is_state_observed and (first := next(filter(seat.state_readers.get, seen), None)):
            self._state = by_kind([first], lineup.observed, lineup)[0][0], seat.state_readers[first]

    def observe(self, seen: Seen) -> dict[str, np.ndarray]:
        seat, spec = self._seat, self._spec
        n = spec.num_members
        lead = seen.num_episodes
        if self._missing and seat.refuses_late and not seen.is_final:
            self._check_complete(seen)
        obs = np.zeros((lead, n, spec.obs_dim), np.float32)
        alive, masks = self._same_for(lead)
        for some, where in self._seen:
            member = seat.members[np.arange(n)[where][0]]
            rows = some.of(seen.observations)
            if member in seat.state_readers:
                rows = without_state(rows)
            if member in seat.masked:
                given = seat.forms[member].read_masks(rows[ACTION_MASK_KEY]) != 0
                is_any = given.any(axis=-1)
                if not is_any.all():
                    if not seen.is_final:
                        agent = some.agents[int(np.argmin(is_any.all(axis=0)))]
                        raise ValueMismatch(
                            f"group {seat.seat_id!r}: {NONE_AVAILABLE.format(agent)}"
                        )
                    all_of_it = masks[:, where, : given.shape[-1]] != 0
                    given = np.where(is_any[..., None], given, all_of_it)
                masks = masks.copy()
                masks[:, where, : given.shape[-1]] = given
                rows = without_mask(rows)
            own = seen.stacked(some, seat.readers[member](rows))
            own = own.reshape(*own.shape[:2], -1)
            obs[:, where, : own.shape[-1]] = own
        found = {OBS: obs, ACTION_MASK: masks, ALIVE: alive}
        if STATE in seat.keys:
            found[STATE] = self._read_state(seen, obs)
        if LAST_ACTION in seat.keys:
            found[LAST_ACTION] = self._last_actions(seen)
        return {key: found[key] for key in seat.keys}

    def _read_state(self, seen: Seen, obs: np.ndarray) -> np.ndarray:
        seat, lead = self._seat, len(obs)
        if seat.has_state and seen.state is not None:
            return seen.state if seat.read_state is None else seat.read_state(seen.state)
        if seat.has_state or (seat.is_state_observed and self._state is None):
            return np.zeros((lead, self._spec.state_dim), np.float32)
        if self._state is not None:
            some, read_state = self._state
            return read_state(some.of(seen.observations)[STATE_KEY]).reshape(lead, -1)
        state = obs.reshape(lead, -1)
        if self._spec.marks_departed:
            departed = seen.have_departed(self._all_places)
            state = np.concatenate([state, departed], axis=1)
        return state

    def _last_actions(self, seen: Seen) -> np.ndarray:
        if self._is_whole:
            last = seen.memory.last_actions[grid(seen.where, self._places)]
            last = np.array(last)
        else:
            last = np.full((seen.num_episodes, self._spec.num_members), NO_ACTION, np.float32)
            last[:, self._here] = seen.memory.last_actions[grid(seen.where, self._places)]
        if seen.back:
            last[:, [m in seen.back for m in self._seat.members]] = NO_ACTION
        return last

    def _check_complete(self, seen: Seen) -> None:
        """Raises `ValueMismatch` if a team begins without a member that has not departed."""
        seat = self._seat
        has_begun = seen.memory.began[seen.where, seen.memory.places[seat.seat_id]]
        if seat.seat_id in seen.anew:
            has_begun = np.zeros_like(has_begun)
        is_missing = ~has_begun[:, None] & ~seen.departed[:, self._missing_places]
        if is_missing.any():
            missing = self._missing[int(np.argmax(is_missing.any(axis=0)))]
            raise ValueMismatch(
                f"group {seat.seat_id!r} acts for the first time in this episode without "
                f"its member {missing!r}; where members take turns or join late, set "
                "late_members: allow for the server",
                agent_id=missing,
                expected=f"observations of {list(seat.members)}",
                got=f"observations of {[m for m in seat.members if m not in self._missing]}",
            )

    def _same_for(self, lead: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns who is there, and who has which actions, in all steps of so many episodes."""
        if len(self._same[0]) != lead:
            once = self._alive, self._masks
            self._same = tuple(np.broadcast_to(one, (lead, *one.shape)) for one in once)  # type: ignore[assignment]
        return self._same

    def reward(self, rewards: np.ndarray) -> np.ndarray:
        return self._seat.reward_rows(rewards[:, self._all_places])

    def write(self, actions: np.ndarray, into: list[Any]) -> None:
        for some, where in self._acts:
            member = self._seat.members[np.arange(actions.shape[1])[where][0]]
            some.write(self._seat.write_rows(member, actions[:, where]), into)

    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        memory.last_actions[grid(where, self._places)] = actions[:, self._here]


def _side_by_side(teams: Sequence[np.ndarray]) -> np.ndarray:
    """Returns ``[E, S, ...]`` of ``[E, ...]`` of each team; of one team a view."""
    return teams[0][:, None] if len(teams) == 1 else np.stack(teams, axis=1)


def _own_space(agent: AgentPlan) -> Space:
    """Returns the space of what a member itself observes, without state and mask."""
    return split_mask(split_state(agent.observation_space)[0])[0]
