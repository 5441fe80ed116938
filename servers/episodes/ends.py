"""Rare events of an episode: agents end, come back, or get rewards while they do not act.

::

    step 0      the first observations
    step t      what followed from the actions of step t - 1: rewards, ends, final observations,
                and the observations to act on next
    end         the same, without observations to act on

A seat ends when the last of its members does. `find` looks at a step and may refuse it, and changes
nothing; `apply` changes the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.rows import pick
from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.blocks import Seats
from muxrl.servers.episodes.record import Record
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.step_check import AgentIds, CheckedStep
from muxrl.servers.episodes.table import EpisodeTable


@dataclass
class Change:
    """What a step or an end changes in an episode, besides what it adds to the record.

    Attributes:
        done: agents that end.
        back: agents that have ended, now or earlier, and observe again.
        respawned: ids of the seats that begin a new life.
        departed: bool ``[1, agents]``, the agents that are done after this step.
        num_seats: number of seats that end, including seats that never began.
        ended: by seat that ends and did begin: whether it is truncated.
        finals: by seat, its last observation ``[1, ...]``, None: the one before once more; a
            seat may be missing.
    """

    done: AgentIds
    back: frozenset[str]
    respawned: frozenset[str]
    departed: np.ndarray
    num_seats: int = 0
    ended: dict[str, bool] = field(default_factory=dict)
    finals: dict[str, Any] = field(default_factory=dict)


class Ends:
    """Finds and records the ends of a server's agents.

    Args:
        table: the server's episodes.
        reward_scales: by policy; empty: rewards are recorded as they come.
        agents_return: whether agents that are done may come back in the same episode.
    """

    def __init__(
        self,
        table: EpisodeTable,
        reward_scales: Mapping[str, RewardScale],
        *,
        agents_return: bool,
    ) -> None:
        self._table = table
        self._scales = reward_scales
        self._agents_return = agents_return

    def find(self, slot: int, seats: Seats, step: CheckedStep, *, is_recorded: bool) -> Change:
        """Returns who is done and who is back. If the step has followed from a recorded action,
        also which seats end, how, and what they observe then.
        """
        table = self._table
        done = step.terminated | step.truncated
        before = table.done_agents(slot)
        departed = before | done
        back = frozenset(step.observations.keys() & departed)
        respawned: set[str] = set()
        if back:
            for seat_id, seat in seats.seats.items():
                if not back.isdisjoint(seat.members) and departed.issuperset(seat.members):
                    respawned.add(seat_id)
        gone = np.array([[a in departed and a not in back for a in table.agents]])
        change = Change(done, back, frozenset(respawned), gone)
        if is_recorded:
            self._find_seats(slot, seats, step, change)
        return change

    def _find_seats(self, slot: int, seats: Seats, step: CheckedStep, change: Change) -> None:
        table, last = self._table, self._table.last[slot]
        assert last is not None
        acting = last.served.agents
        if missing := step.truncated.intersection(acting) - step.final_observations.keys():
            raise _no_final_observation(min(missing))
        if not change.done:
            return
        finals, back = step.final_observations, change.back
        # Besides its own final observation, a seat that ends sees what the others see now.
        last_seen = {**step.observations, **finals} if finals else {}
        if back:
            last_seen = {a: o for a, o in last_seen.items() if a not in back or a in finals}
        # A truncated agent is still observed, so that its value is bootstrapped. An agent that
        # terminates in the same step is not: it counts as departed already.
        before = table.done_agents(slot)
        departed = before | step.terminated
        present = {a: o for a, o in last_seen.items() if a not in departed}
        if_terminated = self._observe(slot, seats, last_seen, departed, step.state)
        if_truncated = self._observe(slot, seats, present, departed, step.state)
        acted, memory = last.served.seat_ids, seats.memory
        for seat_id, seat in seats.seats.items():
            done_now = change.done.intersection(seat.members) - before
            if not done_now or not (before | done_now).issuperset(seat.members):
                continue
            change.num_seats += 1
            if not memory.began[slot, memory.places[seat_id]]:
                continue
            cut_short = done_now & step.truncated
            change.ended[seat_id] = bool(cut_short)
            seen = if_truncated if cut_short else if_terminated
            if cut_short and seat_id in acted and seat_id not in seen:
                # A member that terminates now has acted, and the others have not.
                raise _no_final_observation(min(cut_short))
            if cut_short or seat_id in seen:
                change.finals[seat_id] = seen.get(seat_id)

    def _observe(
        self,
        slot: int,
        seats: Seats,
        observations: Mapping[str, Any],
        departed: AgentIds,
        state: Any,
    ) -> dict[str, Any]:
        """Returns the last observations by seat, each ``[1, ...]``."""
        if not observations:
            return {}
        agents = tuple(a for a in self._table.agents if a in observations)
        served = seats.layout(agents)
        gone = np.array([[a in departed for a in self._table.agents]])
        seen = seats.see(served, observations, state, slot, gone, is_final=True)
        return {
            seat.seat_id: pick(rows, (slice(None), i))
            for one in served.parts
            for rows in [one.observe(seen)]
            for i, seat in enumerate(one.seats)
        }

    def apply(
        self,
        slot: int,
        seats: Seats,
        step: CheckedStep,
        change: Change,
        record: Record | None,
        *,
        is_end: bool = False,
    ) -> bool:
        """Records ends, and rewards of seats that do not act; returns whether any seat was there.

        Args:
            slot: of the episode.
            seats: the seats of the episode.
            step: the checked step, whose rewards have been added to the returns.
            change: what `find` returned.
            record: of the episode; None: it does not train, or no agent has acted yet.
            is_end: whether this is the end of the episode.
        """
        table, memory = self._table, seats.memory
        before = table.done_agents(slot)
        num_here = 0
        if record is not None:
            for seat_id, seat in seats.seats.items():
                if before.issuperset(seat.members):
                    if any(map(step.rewards.get, seat.members)):
                        record.paid_late = seat_id
                else:
                    num_here += 1
            if any(step.late_rewards.values()):
                record.paid_late = next(iter(step.late_rewards))
            self._end_seats(slot, seats, step, change, record)
            if num_here:
                is_last = is_end if self._agents_return else change.num_seats == num_here
                if is_last:
                    record.is_truncated = any(change.ended.values())
                    record.is_terminated = not record.is_truncated
        for agent_id in change.done:
            table.done[slot, table.column[agent_id]] = True
        for agent_id in change.back:
            column = table.column[agent_id]
            table.done[slot, column] = False
            memory.last_actions[slot, column] = -1
            if memory.frames is not None:
                memory.frames.forget(slot, column)
        table.num_done[slot] = int(np.count_nonzero(table.done[slot]))
        for seat_id in change.respawned:
            if record is not None:
                record.after(partial(record.begin_again, seat_id))
            memory.begin_again(slot, seats.seats[seat_id])
        return num_here > 0

    def _end_seats(
        self, slot: int, seats: Seats, step: CheckedStep, change: Change, record: Record
    ) -> None:
        # In a fixed order, since seats may share a scale: first the seats with a last observation.
        order = [s for s in seats.seats if s in change.finals]
        order += sorted(change.ended.keys() - change.finals.keys())
        memory = seats.memory
        for seat_id in order:
            seat, place = seats.seats[seat_id], memory.places[seat_id]
            reward = float(memory.pending[slot, place] + _reward(seat, step.rewards))
            if self._scales:
                scale = self._scales[seat.policy_id]
                reward, _ = scale.scale(reward, float(memory.discounted[slot, place]))
            record.after(
                partial(
                    record.end_seat,
                    seat_id,
                    change.finals.get(seat_id),
                    reward,
                    is_truncated=change.ended[seat_id],
                )
            )

    def pay_absent(
        self,
        slot: int,
        seats: Seats,
        rewards: Mapping[str, float],
        acting: frozenset[str],
        before: AgentIds,
        record: Record,
    ) -> bool:
        """Keeps rewards of seats that have begun and do not act now; returns whether there are any.

        Args:
            slot: of the episode.
            seats: the seats of the episode.
            rewards: by agent.
            acting: ids of the seats that act.
            before: agents that were done before these rewards came.
            record: of the episode.
        """
        memory = seats.memory
        done, found = self._table.done_agents(slot), False
        for seat_id, seat in seats.seats.items():
            if seat_id in acting or rewards.keys().isdisjoint(seat.members):
                continue
            if before.issuperset(seat.members):
                if any(map(rewards.get, seat.members)):
                    record.paid_late = seat_id
            elif done.issuperset(seat.members):
                continue  # it is in the seat's last reward
            elif memory.began[slot, memory.places[seat_id]]:
                memory.pending[slot, memory.places[seat_id]] += _reward(seat, rewards)
                found = True
        return found


def _reward(seat: Seat, rewards: Mapping[str, float]) -> float:
    """Returns the reward of a seat from the rewards of agents, computed as in `Part.rewards`."""
    total = 0.0
    for agent_id in seat.members:
        total += rewards.get(agent_id, 0.0)
    return total / len(seat.members) if seat.reward == "mean" else total


def _no_final_observation(agent_id: str) -> ValueMismatch:
    return ValueMismatch(
        f"agent {agent_id!r} was truncated without its final observation, from which its value is "
        "bootstrapped",
        agent_id=agent_id,
        expected=f"final_observations[{agent_id!r}]",
        got="none",
    )
