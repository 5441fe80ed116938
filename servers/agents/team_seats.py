"""Seats of teams: one agent of a trainer for each group, as QMIX, VDN, QPLEX and IQL learn.

The format of a team's observations is that of `TeamSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.rows import Lineup, compact
from muxrl.protocol.spaces import Box, Space
from muxrl.servers.agents.action_forms import ActionForm, counted_from_0
from muxrl.servers.agents.benches import Part, Seen, parts_of
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.seating import (
    PolicySignature,
    Seating,
    find_state_problem,
    keys_of,
    state_sizes,
    state_text,
)
from muxrl.servers.agents.seats import Seat, SeatRecord, StepView
from muxrl.servers.agents.spaces import (
    ACTION_MASK_KEY,
    STATE_KEY,
    flat_size,
    split_mask,
    split_state,
    without_mask,
    without_state,
)
from muxrl.servers.agents.teams import (
    ACTION_MASK,
    ALIVE,
    LAST_ACTION,
    NO_ACTION,
    OBS,
    STATE,
    TEAM_KEYS,
    TeamProblem,
    TeamRows,
    TeamSpec,
    team_reward,
)
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
        self._are_plain = all(form.is_plain for form in self.forms.values())
        self.policy_id = self._plans[self.members[0]].policy_id
        self._reward_rule = plan.team_reward
        self.has_state = plan.state_size is not None
        self._refuses_late = plan.late_members == "refuse"
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
            marks_departed=not self._refuses_late,
            masked=frozenset(self.masked),
        )
        self.is_state_observed = plan.state_size is None and state_size is not None
        self.observation_space: Space = self.team.observation_space
        self.action_space: Space = self.team.action_space

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        mine: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        state = step_view.state if self.has_state else None
        if self.read_state is not None:
            state = self.read_state(state)
        for member in self.members:
            value = step_view.observations.get(member)
            if value is None:
                continue
            if member in self.state_readers:
                if self.is_state_observed and state is None:  # all members observe the same one
                    state = self.state_readers[member](value[STATE_KEY]).reshape(-1)
                value = without_state(value)
            if member in self.masked:
                mask = self.forms[member].read_mask(value[ACTION_MASK_KEY])
                if not step_view.is_final or mask.any():
                    masks[member] = mask
                value = without_mask(value)
            mine[member] = step_view.read(member, self.readers[member], value).reshape(-1)
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
                mine,
                masks or None,
                state,
                self._last_actions(record, step_view),
                step_view.departed,
            )
        except TeamProblem as error:
            raise ValueMismatch(f"group {self.seat_id!r}: {error}") from None

    def observe_nobody(self) -> Any:
        """Returns what the team observes where none of its members is asked."""
        size = self.team.state_size
        return self.team.observe({}, state=None if size is None else np.zeros(size, np.float32))

    def reward(self, rewards: Mapping[str, float]) -> float:
        mine = {m: rewards[m] for m in self.members if m in rewards}
        return team_reward(mine, self._reward_rule, len(self.members)) if mine else 0.0

    @property
    def keys(self) -> tuple[str, ...]:
        """What a team's observation consists of."""
        return TEAM_KEYS

    @property
    def bench_class(self) -> type[TeamBench] | None:
        """What reads such teams together; None: they are read one by one."""
        return TeamBench if type(self) is TeamSeat and self._are_plain else None

    def write_rows(self, member: str, actions: np.ndarray) -> Any:
        """Returns rows of the actions of members of a kind, of those of a network."""
        return self.forms[member].write_rows(actions)

    def reward_rows(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the team's rewards ``[E]`` of its members' ``[E, n]``."""
        total = np.zeros(len(rewards))
        for column in rewards.T:  # in the order in which one team's are added, to the last bit
            total += column
        return total if self._reward_rule == "sum" else total / len(self.members)

    def _last_actions(self, record: SeatRecord, step_view: StepView) -> Mapping[str, Any]:
        last = record.last_actions
        if step_view.back:
            last = {m: action for m, action in last.items() if m not in step_view.back}
        if self._are_plain:
            return last
        return {m: form.read(last[m]) for m, form in self.forms.items() if m in last}

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        actions = self.team.split(action, [m for m in self.members if m in acting])
        if self._are_plain:
            return actions
        return {member: self.forms[member].write(own) for member, own in actions.items()}

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        read = {m: form.read(logged[m]) for m, form in self.forms.items() if m in logged}
        return self.team.join(read) if read else None

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        return None  # teams learn values of actions, whoever chose them


class TeamBench:
    """Teams of one policy: see `muxrl.servers.agents.benches`.

    Args:
        seats: of the same policy.
        lineup: some of their members are in it.
    """

    def __init__(self, seats: Sequence[TeamSeat], lineup: Lineup) -> None:
        self.seats: tuple[Seat, ...] = tuple(seats)
        self.reads_last_actions = LAST_ACTION in seats[0].keys
        self.policy_id = seats[0].policy_id
        self._teams = [_TeamRows(seat, lineup) for seat in seats]

    def observe(self, seen: Seen) -> Any:
        teams = [team.observe(seen) for team in self._teams]
        found = [team for team in teams if team is not None]
        if len(found) < len(teams):
            return None
        return {key: _side_by_side([team[key] for team in found]) for key in found[0]}

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        return _side_by_side([team.reward(rewards) for team in self._teams])

    def write(self, actions: np.ndarray, into: Sequence[Any]) -> None:
        for i, team in enumerate(self._teams):
            team.write(actions[:, i], into)


class _TeamRows:
    """One team in the rows of a lineup."""

    def __init__(self, seat: TeamSeat, lineup: Lineup) -> None:
        members = list(seat.members)
        self._seat = seat
        self._spec = seat.team
        seen = [m for m in members if m in lineup.agents]
        here = [m in seen for m in members]
        self._places = compact(lineup.places_of(seen))
        self._here = compact(np.flatnonzero(here))
        self._alive = np.array(here, np.float32)
        self._masks = self._spec.masks_of(here)
        self._same = self._alive[None], self._masks[None]
        self._seen = parts_of(members, lineup.observed)
        self._acts = parts_of(members, lineup.acted)
        self._state: tuple[Part, Callable[[Any], np.ndarray]] | None = None
        """Of the first member that observes the state."""
        if seat.is_state_observed and (first := next(filter(seat.state_readers.get, seen), None)):
            self._state = parts_of([first], lineup.observed)[0][0], seat.state_readers[first]

    def observe(self, seen: Seen) -> dict[str, np.ndarray] | None:
        seat, spec = self._seat, self._spec
        n = spec.num_members
        lead = seen.num_episodes
        obs = np.zeros((lead, n, spec.obs_dim), np.float32)
        alive, masks = self._same_for(lead)
        for part, where in self._seen:
            member = seat.members[np.arange(n)[where][0]]
            rows = part.of(seen.observations)
            if member in seat.state_readers:
                rows = without_state(rows)
            if member in seat.masked:
                given = seat.forms[member].read_masks(rows[ACTION_MASK_KEY]) != 0
                if not given.any(axis=-1).all():
                    return None
                masks = masks.copy()
                masks[:, where, : given.shape[-1]] = given
                rows = without_mask(rows)
            own = seen.read(part, seat.readers[member], rows)
            own = own.reshape(*own.shape[:2], -1)
            obs[:, where, : own.shape[-1]] = own
        if seat.has_state:
            assert seen.state is not None
            state = seen.state if seat.read_state is None else seat.read_state(seen.state)
        elif seat.is_state_observed:
            if self._state is None:
                return None
            part, read_state = self._state
            state = read_state(part.of(seen.observations)[STATE_KEY]).reshape(lead, -1)
        else:
            state = obs.reshape(lead, -1)
            if spec.marks_departed:
                state = np.concatenate([state, seen.have_departed(seat.members)], axis=1)
        last = np.full((lead, n), NO_ACTION, np.float32)
        if seen.last_actions is not None:
            last[:, self._here] = seen.last_actions[:, self._places]
        found = {
            OBS: obs,
            STATE: state,
            ACTION_MASK: masks,
            ALIVE: alive,
            LAST_ACTION: last,
        }
        return {key: found[key] for key in seat.keys}

    def _same_for(self, lead: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns who is there, and who has which actions, in all steps of so many episodes."""
        if len(self._same[0]) != lead:
            once = self._alive, self._masks
            self._same = tuple(np.broadcast_to(one, (lead, *one.shape)) for one in once)  # type: ignore[assignment]
        return self._same

    def reward(self, rewards: np.ndarray) -> np.ndarray:
        return self._seat.reward_rows(rewards[:, self._places])

    def write(self, actions: np.ndarray, into: Sequence[Any]) -> None:
        for part, where in self._acts:
            member = self._seat.members[np.arange(actions.shape[1])[where][0]]
            part.write(self._seat.write_rows(member, actions[:, where]), into)


def _side_by_side(teams: Sequence[np.ndarray]) -> np.ndarray:
    """Returns ``[E, S, ...]`` of ``[E, ...]`` of each team; of one team a view."""
    return teams[0][:, None] if len(teams) == 1 else np.stack(teams, axis=1)


def _own_space(agent: AgentPlan) -> Space:
    """Returns the space of what a member itself observes, without state and mask."""
    return split_mask(split_state(agent.observation_space)[0])[0]
