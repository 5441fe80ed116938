"""Seats of agents whose critic sees the global state, as MAPPO learns.

An agent in a group is recorded at every step of its team, even when it does not act or has
departed. Such a step is marked by `ALIVE` 0: it trains the critic, which learns what the team still
earns, but not the actor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from muxrl.protocol import spaces as plain
from muxrl.protocol.rows import Lineup
from muxrl.servers.agents.action_forms import ActionForm
from muxrl.servers.agents.frames import stacked_shape
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.agents.masks import observed_parts
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.parts import Seen, by_kind, places_of
from muxrl.servers.agents.seating import (
    PolicySignature,
    Seating,
    find_state_problem,
    keys_of,
    state_sizes,
)
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.solo_seats import SoloPart, SoloSeat
from muxrl.servers.agents.spaces import (
    STATE_KEY,
    flat_size,
    read_shape,
    split_mask,
    split_state,
    without_mask,
    without_state,
)
from muxrl.servers.config import AgentPlan, ServerPlan

_Reader = Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class CentralSeating(Seating):
    """Every agent is an RLlib agent of its own that is recorded with the state its critic sees.

    The agents of a group earn the team's reward and see the team's state; an agent in no group
    sees the state of all of the server's agents.
    """

    follows_masks: bool = True
    is_joint: ClassVar[bool] = True

    def has_made(self, observation_space: Any) -> bool:
        # A team's observations are rows, one for each member.
        return (
            STATE in keys_of(observation_space)
            and len(observation_space.spaces[OBS].shape or ()) == 1
        )

    def signature(self, unit: str, plan: ServerPlan) -> PolicySignature:
        alone = super().signature(unit, plan)
        agent = plan.agents[unit]
        view = tuple(plan.agents) if agent.group is None else plan.groups[agent.group]
        state_size = state_sizes(plan, view)[view[0]]
        if state_size is None:
            rest = [split_state(plan.agents[a].observation_space)[0] for a in view]
            state_size = sum(flat_size(split_mask(space)[0]) for space in rest)
        return PolicySignature(
            (alone.key, len(view), state_size),
            f"{alone.text}, {len(view)} in view, a state of {state_size}",
        )

    def network_space(self, agent: AgentPlan) -> plain.Space:
        space = split_state(agent.observation_space)[0]
        return split_mask(space)[0] if self.follows_masks else space

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        views = dict(plan.groups)
        if any(agent.group is None for agent in plan.agents.values()):
            views["(all agents)"] = tuple(plan.agents)
        for group, members in views.items():
            if problem := find_state_problem(group, members, plan):
                yield problem

    def unread(self, about: Mapping[str, Any]) -> frozenset[str]:
        unread = super().unread(about)
        if about and not about["settings"].get("obs_agent_id"):
            unread |= {AGENT_ID}
        if about and not about["model"].get("use_lstm"):
            unread |= {ALIVE}
        return unread

    def make_seats(self, plan: ServerPlan, observing: Observing | None = None) -> dict[str, Seat]:
        """Returns a seat for each agent, by agent id."""
        observing = observing or Observing.of(plan)
        views = {g: StateView(members, plan, observing) for g, members in plan.groups.items()}
        everybody = StateView(tuple(plan.agents), plan, observing)
        return {
            agent_id: CentralSeat(
                agent_id,
                plan,
                observing,
                everybody if agent.group is None else views[agent.group],
                form=self.action_form(agent),
                follows_mask=self.follows_masks,
            )
            for agent_id, agent in plan.agents.items()
        }


class StateView:
    """What the critics of some agents see at one step.

    It is the state that the simulation sends; else the state that these agents observe (key
    ``state``, the same for all of them); else, or without `use_global_state`, their observations
    side by side. There, agents without an observation have zeros, and where members may come late,
    a 1 follows for every agent that has departed.

    Args:
        members: agents, in the order of their observations in the state.
        plan: of their server.
        observing: how observations and states are read.
    """

    def __init__(self, members: tuple[str, ...], plan: ServerPlan, observing: Observing) -> None:
        self.members = members
        self._has_state = plan.state_size is not None
        self._read_state: Reading | None = None
        if plan.state_size is not None:
            self._read_state = observing.simulation_state_reader(plan.state_size)
        self._own: dict[str, tuple[Callable[[Any], Any], _Reader, slice]] = {}
        self._observed: dict[str, _Reader] = {}
        self.size = 0
        for member in members:
            space, state_space = split_state(plan.agents[member].observation_space)
            rest, has_mask = split_mask(space)
            strip = _stripper(has_state=state_space is not None, has_mask=has_mask)
            shape = stacked_shape(read_shape(rest), observing.frame_stack)
            size = math.prod(shape)
            place = slice(self.size, self.size + size)
            self._own[member] = strip, observing.reader(member, rest), place
            self.size += size
            if state_space is not None and plan.use_global_state and not self._has_state:
                self._observed[member] = observing.state_reader(member, state_space)
                state_size = flat_size(state_space)
        self._marks_departed = plan.late_members == "allow"
        if self._marks_departed:
            self.size += len(members)
        if self._observed:
            self.size = state_size
        if plan.state_size is not None:
            self.size = plan.state_size

    def rows_reader(self, lineup: Lineup) -> Callable[[Seen], np.ndarray]:
        """Returns what reads states of the steps of a lineup, float32 ``[E, size]``."""
        columns = [
            (by_kind([m], lineup.observed, lineup)[0][0], *own)
            for m, own in self._own.items()
            if m in lineup.agents
        ]
        observed = [
            (by_kind([m], lineup.observed, lineup)[0][0], read)
            for m, read in self._observed.items()
            if m in lineup.agents
        ]
        places = places_of(self.members, lineup)

        def read_all(seen: Seen) -> np.ndarray:
            if self._has_state:
                if seen.state is None:
                    return np.zeros((seen.num_episodes, self.size), np.float32)
                of_state = self._read_state
                return seen.state if of_state is None else of_state(seen.state)
            if self._observed:
                if not observed:
                    return np.zeros((seen.num_episodes, self.size), np.float32)
                some, read_state = observed[0]
                state = read_state(some.of(seen.observations)[STATE_KEY])
                return state.reshape(seen.num_episodes, -1)
            states = np.zeros((seen.num_episodes, self.size), np.float32)
            for some, strip, read_own, place in columns:
                own = seen.stacked(some, read_own(strip(some.of(seen.observations))))
                states[:, place] = own.reshape(len(own), -1)
            if self._marks_departed:
                states[:, -len(self.members) :] = seen.have_departed(places)
            return states

        return read_all


class CentralSeat(SoloSeat):
    """One agent with its view of the state; recorded as described in this module's docstring.

    Args:
        agent_id: the agent.
        plan: its server's.
        observing: how observations are read.
        view: shared with the others of its group, or with all agents of the server.
        form, follows_mask: see `SoloSeat`.
    """

    def __init__(
        self,
        agent_id: str,
        plan: ServerPlan,
        observing: Observing,
        view: StateView,
        *,
        form: ActionForm,
        follows_mask: bool,
    ) -> None:
        agent = plan.agents[agent_id]
        space, state_space = split_state(agent.observation_space)
        super().__init__(
            agent_id,
            dataclasses.replace(agent, observation_space=space),
            observing,
            form=form,
            follows_mask=follows_mask,
        )
        self.observes_state = state_space is not None
        self.view = view
        self.is_in_group = agent.group is not None
        self.reward_rule = plan.team_reward
        # A seat ends when all of its members do: in a group, when the team ends.
        self.members = view.members if self.is_in_group else (agent_id,)
        parts = observed_parts(self.observation_space)
        self.agent_id = np.eye(len(view.members), dtype=np.float32)[view.members.index(agent_id)]
        parts[STATE] = plain.Box((view.size,))
        parts[AGENT_ID] = plain.Box((len(view.members),), "float32", 0.0, 1.0)
        if self.is_in_group:
            parts[ALIVE] = plain.Box((1,), "float32", 0.0, 1.0)
        self.observation_space = plain.DictSpace(parts)

    @property
    def part_class(self) -> type[CentralPart]:
        return CentralPart


class CentralPart(SoloPart):
    """Agents of one policy with what their critics see.

    Args:
        seats: see `SoloPart`.
        lineup: they are in it, or of a group of which others are.
    """

    def __init__(self, seats: Sequence[CentralSeat], lineup: Lineup) -> None:
        super().__init__(seats, lineup)
        observing = [seat.seat_id for seat in seats if seat.observes_state]
        self._with_state = {some.kind for some, _ in by_kind(observing, lineup.observed, lineup)}
        self._views = list({id(seat.view): seat.view for seat in seats}.values())
        self._view_of = [self._views.index(seat.view) for seat in seats]
        self._reads = [view.rows_reader(lineup) for view in self._views]
        self._agent_ids = np.stack([seat.agent_id for seat in seats])
        self._columns = [places_of(seat.members, lineup) for seat in seats]
        absent = [i for i, seat in enumerate(seats) if seat.seat_id not in self._here]
        self._absent = np.array(absent, np.int64)
        self._absent_places = places_of([seats[i].seat_id for i in absent], lineup)
        self._parts = observed_parts(seats[0].observation_space)
        self._is_in_group = seats[0].is_in_group
        self._takes_mean = seats[0].reward_rule == "mean"

    def observe(self, seen: Seen) -> Any:
        lead = seen.num_episodes, len(self.seats)
        own = super().observe(self._of_actors(seen)) if self._here else self._no_rows(lead)
        found = dict(own) if isinstance(own, dict) else {OBS: own}
        states = [read(seen) for read in self._reads]
        if len(states) == 1:
            state = np.broadcast_to(states[0][:, None], (*lead, states[0].shape[1]))
        else:
            state = np.stack([states[i] for i in self._view_of], axis=1)
        found[STATE] = state
        found[AGENT_ID] = np.broadcast_to(self._agent_ids, (*lead, self._agent_ids.shape[1]))
        if self._is_in_group:
            found[ALIVE] = np.ones((*lead, 1), np.float32)
        if len(self._absent):  # of whom nothing is seen
            found[ALIVE][:, self._absent] = 0.0
            if ACTION_MASK in found:  # without effect, but the distribution needs an action
                found[ACTION_MASK][:, self._absent] = 1.0
            # Yu et al. 2022, "death masking": of a departed agent the critic sees only the id.
            rows, columns = np.nonzero(seen.departed[:, self._absent_places])
            found[STATE] = np.array(state)
            found[STATE][rows, self._absent[columns]] = 0.0
        return found

    def _of_actors(self, seen: Seen) -> Seen:
        """Returns what is seen without the state that agents observe."""
        if not self._with_state:
            return seen
        rows = [
            without_state(own) if i in self._with_state else own
            for i, own in enumerate(seen.observations)
        ]
        return msgspec.structs.replace(seen, observations=rows)

    def _no_rows(self, lead: tuple[int, int]) -> dict[str, np.ndarray]:
        return {
            key: np.zeros((*lead, *self._parts[key].shape), np.float32)
            for key in (OBS, ACTION_MASK)
            if key in self._parts
        }

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        if not self._is_in_group:
            return super().rewards(rewards)
        of_seats = np.zeros((len(rewards), len(self.seats)))
        for i, columns in enumerate(self._columns):
            for column in rewards[:, columns].T:  # in the order of the members, to the last bit
                of_seats[:, i] += column
            if self._takes_mean:
                of_seats[:, i] /= len(self.seats[i].members)
        return of_seats


def _stripper(*, has_state: bool, has_mask: bool) -> Callable[[Any], Any]:
    """Returns what leaves an observation without its state and mask."""

    def strip(value: Any) -> Any:
        value = without_state(value) if has_state else value
        return without_mask(value) if has_mask else value

    return strip
