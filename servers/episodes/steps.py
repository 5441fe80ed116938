"""Enters the steps of a server's episodes into its table and the episodes' records.

A step is checked completely before anything changes, so that a client can correct a refused step
and send the same `t` again. A repeated step gets the answer that it got before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.episode import is_repeat, unanswered
from muxrl.protocol.errors import OutOfOrder, ValueMismatch
from muxrl.protocol.messages import EndEpisode, Step, StepRows
from muxrl.protocol.rows import grid, index_of, pick
from muxrl.protocol.values import within
from muxrl.servers.agents.memory import Slots
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.parts import Seen
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.blocks import Block, Mode, Seats, part_of
from muxrl.servers.episodes.ends import Ends
from muxrl.servers.episodes.reading import Reading
from muxrl.servers.episodes.record import Record
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.step_check import (
    MAX_RETURN,
    NO_IDS,
    SMALL_REWARD,
    AgentIds,
    CheckedStep,
    StepCheck,
)
from muxrl.servers.episodes.table import EpisodeTable

_MOST_BLOCKS = 256
"""Most blocks of a record until it is put together: each holds rows of other episodes, too."""


class Rows(NamedTuple):
    """Some rows of a `StepRows`, as a block that is not yet recorded."""

    places: np.ndarray | slice
    """Places of the rows in the message."""
    block: Block
    rewards: np.ndarray | None
    """``[E, agents of the server]``; None: all rewards are 0."""
    is_same: bool
    """Whether all rows were in the same block before, with the same agents."""
    newest: Sequence[tuple[Any, np.ndarray]]
    """See `Frames.advance`."""

    def some(self, where: slice) -> Rows:
        """Returns some of the rows."""
        rewards = None if self.rewards is None else self.rewards[where]
        block = self.block.rows(where)
        return Rows(part_of(self.places, where), block, rewards, self.is_same, ())


class Steps:
    """Receives steps and ends.

    Args:
        plan: the server.
        table: the server's episodes.
        records: whether training episodes are recorded.
        observing: keeps statistics of training episodes; None: there are no statistics.
        reward_scales: by policy; empty: rewards are recorded as they come.
    """

    def __init__(
        self,
        plan: ServerPlan,
        table: EpisodeTable,
        *,
        records: bool,
        observing: Observing | None,
        reward_scales: Mapping[str, RewardScale],
    ) -> None:
        self._plan = plan
        self._table = table
        self._records = records
        self._observing = observing
        self._scales = reward_scales
        self._check = check = StepCheck(
            plan.agents,
            plan.state_size,
            max_abs_reward=plan.limits.max_abs_reward,
            max_abs_observation=plan.limits.max_abs_observation,
            agents_return=plan.agents_return,
        )
        self.reading = Reading(check)
        self._has_large_rewards = check.max_reward > SMALL_REWARD
        self._ends = Ends(table, reward_scales, agents_return=plan.agents_return)
        self.long: list[Record] = []
        """Records with so many blocks that they should be put together."""
        self._has_pending = False
        """Whether a seat ever got a reward while it did not act."""

    # --- one episode --------------------------------------------------------------------

    def repeated(self, item: Step, slot: int) -> Block | None:
        """Returns the block of a repeated step; None: it is the next step.

        Raises:
            OutOfOrder: it is neither, or the step before still waits for its actions.
        """
        t, last = self._table.t[slot], self._table.last[slot]
        if item.t == t:
            if last is not None and last.chosen is None:
                raise OutOfOrder(unanswered(item.episode_id, t, "observe"))
            return None
        return last if is_repeat(item.episode_id, t, item.t) else None

    def add(self, item: Step, slot: int, now: float) -> tuple[Block, bool]:
        """Records the next step of an episode; returns its block, and whether an env step followed.

        Raises:
            ValueMismatch: a value is not as declared; nothing was recorded.
        """
        table, mode = self._table, self._table.modes[slot]
        seats: Seats = mode.seats
        done = table.done_agents(slot) if table.num_done[slot] else NO_IDS
        step = self._check.step(item, done, partial(table.returns_of, slot))
        seen_agents = step.observations
        if len(seen_agents) == len(table.agents) and not mode.untrained:
            served = seats.everybody
        else:
            agents = tuple(a for a in table.agents if a in seen_agents)
            served = seats.layout(agents, mode.untrained)
        is_rare = bool(step.terminated or step.truncated or (done and done & seen_agents.keys()))
        is_first, is_training = item.t == 0, mode.is_training
        record = table.records[slot] if is_training and not is_first else None
        change = None
        if is_rare:
            change = self._ends.find(slot, seats, step, is_recorded=record is not None)
        where = slice(slot, slot + 1)
        departed = table.done[where] if change is None else change.departed
        seen = seats.see(served, seen_agents, step.state, slot, departed)
        if change is not None:
            seen.back = change.back
        observations = [one.observe(seen) for one in served.parts]
        # From here on the step cannot be refused any more.
        rewards = step.rewards
        self._sum(slot, step)
        block = Block(table, mode, served, [item.episode_id], [slot], where, [item.t], observations)
        if step.logged_actions:
            block.logged = served.read_logged(step.logged_actions, step.logged_log_probs)
        if is_training and self._records:
            pay = np.array([[rewards.get(a, 0.0) for a in table.agents]]) if rewards else None
            self._pay(block, pay, NO_IDS if change is None else change.respawned)
        is_env_step = record is not None
        if change is not None:
            is_env_step = self._ends.apply(slot, seats, step, change, record)
            if record is not None and not is_env_step:
                record.after(record.note_none)
        elif record is not None and any(step.late_rewards.values()):
            record.paid_late = next(iter(step.late_rewards))
        if table.players[slot] is not None:
            block.players = [table.players[slot]]
        if record is not None and rewards and not rewards.keys() <= seen_agents.keys():
            acting = served.seat_ids
            self._has_pending |= self._ends.pay_absent(slot, seats, rewards, acting, done, record)
        last = table.last[slot]
        is_same = change is None and last is not None and last.served is served
        self._link(block, now, is_same=is_same)
        if is_training and item.t and not is_env_step:
            table.num_new[slot] -= 1
        if seats.memory.frames is not None:
            seats.memory.frames.advance(seen.newest)
        if self._observing is not None and is_training:
            self._observing.add(served.observed, seen.observations, seen.state)
        return block, is_env_step

    def end(self, item: EndEpisode, slot: int) -> tuple[dict[str, float], bool]:
        """Records what followed from the last actions of an episode.

        Returns:
            The return of each agent that has acted or has got a reward, and whether an env step
            followed.

        Raises:
            OutOfOrder, ValueMismatch: the end is refused; nothing was recorded.
        """
        table, mode, t = self._table, self._table.modes[slot], self._table.t[slot]
        if item.t != t:
            raise OutOfOrder(
                f"episode {item.episode_id} has seen {t} steps on server "
                f"{self._plan.server_id!r}, but its end has t={item.t}; was a step lost?",
                expected=f"t={t}",
                got=f"t={item.t}",
            )
        if table.is_waiting(slot):
            raise OutOfOrder(unanswered(item.episode_id, t, "end"))
        step = self._check.end(item, table.done_agents(slot), partial(table.returns_of, slot))
        record = table.records[slot] if mode.is_training and t else None
        change = self._ends.find(slot, mode.seats, step, is_recorded=record is not None)
        self._sum(slot, step)
        is_env_step = self._ends.apply(slot, mode.seats, step, change, record, is_end=True)
        if record is not None and is_env_step:
            record.after(record.note_env_step)
        return table.returns_of(slot), is_env_step

    def _sum(self, slot: int, step: CheckedStep) -> None:
        table, known = self._table, step.observations.keys()
        return_at, column = table.return_at, table.column
        first = slot * len(column)
        for agent_id, reward in step.rewards.items():
            return_at[first + column[agent_id]] += reward
        if not step.rewards.keys() <= known:
            for agent_id in step.rewards:
                table.known[slot, column[agent_id]] = True
        for agent_id, reward in step.late_rewards.items():
            return_at[first + column[agent_id]] += reward
            table.known[slot, column[agent_id]] = True

    # --- many episodes ------------------------------------------------------------------

    def read(self, item: StepRows) -> list[Rows] | None:
        """Returns the rows in blocks, one for each mode, without recording them; None: not plain.

        Args:
            item: the message, whose arrays fit each other; see `Reading.check`.
        """
        table, agents = self._table, self.reading.agents_of(item)
        if len(item.episode_ids) == 1:
            slot = table.slot_of.get(item.episode_ids[0], -1)
            if slot < 0 or item.t[0] != table.t[slot] or table.is_waiting(slot):
                return None
            where: Slots = slice(slot, slot + 1)
            mode, last = table.modes[slot], table.last[slot]
            one = self._rows(item, agents, None, [slot], where, mode, last)
            return None if one is None else [one]
        slots: list[Any] = list(map(table.slot_of.get, item.episode_ids))
        if None in slots:
            return None
        where = index_of(slots)
        if not isinstance(where, slice) and len(set(slots)) < len(slots):
            return None
        if not (item.t == table.ts[where]).all():
            return None
        newest = table.of(table.last, slots, where)
        last = newest[0]
        if newest.count(last) < len(newest):
            if any(one is not None and one.chosen is None for one in set(newest)):
                return None
            last = None
        elif last is not None and last.chosen is None:
            return None
        first = table.modes[slots[0]]
        modes = table.of(table.modes, slots, where)
        if modes.count(first) == len(modes):
            one = self._rows(item, agents, None, slots, where, first, last)
            return None if one is None else [one]
        found = []
        for mode in dict.fromkeys(modes):
            places = np.array([i for i, other in enumerate(modes) if other == mode])
            own = [slots[i] for i in places.tolist()]
            rows = self._rows(item, agents, places, own, index_of(own), mode, None)
            if rows is None:
                return None
            found.append(rows)
        return found

    def _rows(
        self,
        item: StepRows,
        agents: tuple[str, ...],
        places: np.ndarray | None,
        slots: list[int],
        where: Any,
        mode: Mode,
        last: Block | None,
    ) -> Rows | None:
        table, lead = self._table, len(slots)
        if agents is self.reading.everybody and not mode.untrained:
            served = mode.seats.everybody
        else:
            served = mode.seats.layout(agents, mode.untrained)
        has_done = table.num_done[slots[0]] if lead == 1 else table.nums_done[where].any()
        if has_done and table.done[grid(where, served.places)].any():
            return None
        ids, observed = item.episode_ids, item.observations
        t = item.t.tolist() if lead == 1 else item.t
        state, rewards = item.state, item.rewards
        logged, known = item.logged_actions, item.logged_log_probs
        if places is not None:
            ids, t = [ids[i] for i in places.tolist()], item.t[places]
            observed, state, rewards = pick((observed, state, rewards), places)
            logged, known = pick((logged, known), places)
        pay = rewards
        if rewards is not None:
            if not served.is_all:
                pay = np.zeros((lead, len(table.agents)))
                pay[:, served.places] = rewards
            if self._has_large_rewards and not within(table.returns[where] + pay, MAX_RETURN):
                return None
        seen = Seen(
            lead, served.layout, observed, state, mode.seats.memory, where, table.done[where]
        )
        try:
            observations = [one.observe(seen) for one in served.parts]
        except ValueMismatch:  # the step by itself will name the agent
            return None
        block = Block(table, mode, served, ids, slots, where, t, observations)
        if logged is not None:
            block.logged = served.read_logged_rows(logged, None, known)
        if table.players[slots[0]] is not None:
            block.players = [table.players[slot] for slot in slots]
        is_same = last is not None and last.served is served
        of = slice(0, lead) if places is None else places
        return Rows(of, block, pay, is_same, seen.newest)

    def add_rows(self, rows: Rows, now: float) -> None:
        """Records a block of rows."""
        if rows.rewards is not None:
            self._table.returns[rows.block.where] += rows.rewards
        self._pay(rows.block, rows.rewards)
        self._link(rows.block, now, is_same=rows.is_same)

    def observe(self, item: StepRows, rows: Rows) -> None:
        """Counts the observations of rows, if there are statistics."""
        if self._observing is not None and rows.block.mode.is_training:
            seen, state = pick((item.observations, item.state), rows.places)
            self._observing.add(rows.block.served.observed, seen, state)

    # --- records ------------------------------------------------------------------------

    def _link(self, block: Block, now: float, *, is_same: bool) -> None:
        """Makes a block the newest one of its episodes.

        Args:
            block: checked, with its rewards.
            now: time of the step.
            is_same: whether the same agents acted in the step before.
        """
        table, slots, where = self._table, block.slots, block.where
        if not is_same:
            table.known[grid(where, block.served.places)] = True
            for one in block.served.parts:
                block.mode.seats.memory.began[grid(where, one.seat_places)] = True
        if block.mode.is_training and self._records:
            for slot in slots:
                record: Any = table.records[slot]
                record.blocks.append(block)
                if len(record.blocks) > _MOST_BLOCKS:
                    self.long.append(record)
        if len(slots) == 1:  # ten times as fast as arrays of one element
            (slot,) = slots
            table.last[slot] = block
            table.num_new[slot] += int(block.t[0] > 0)
            table.t[slot] += 1
            table.seen_at[slot] = now
            return
        if isinstance(where, slice):
            table.last[where] = [block] * len(slots)
        else:
            for slot in slots:
                table.last[slot] = block
        table.nums_new[where] += np.asarray(block.t) > 0
        table.ts[where] += 1
        table.seen_ats[where] = now

    def _pay(self, block: Block, pay: np.ndarray | None, respawned: AgentIds = NO_IDS) -> None:
        """Sets the rewards that a block records for the seats that act, if it is recorded.

        Args:
            block: not linked yet.
            pay: rewards ``[E, agents of the server]``; None: all are 0.
            respawned: ids of the seats that begin a new life; such rewards belong to the old one.
        """
        if not block.mode.is_training or not self._records:
            return
        if pay is None:
            pay = np.zeros((len(block.slots), len(self._table.agents)))
        memory = block.mode.seats.memory
        for one in block.served.parts:
            index, rewards = grid(block.where, one.seat_places), one.rewards(pay)
            continues: Any = True
            if respawned:
                continues = np.array([seat.seat_id not in respawned for seat in one.seats])
            if self._has_pending:
                pending = memory.pending[index]
                rewards = rewards + pending  # not recorded for a new life
                memory.pending[index] = np.where(continues, 0.0, pending)
            if self._scales:
                acted = memory.began[index] & continues
                rewards, discounted = np.array(rewards), np.array(memory.discounted[index])
                scale = self._scales[one.policy_id].scale
                for at in zip(*np.nonzero(acted), strict=True):
                    scaled = scale(float(rewards[at]), float(discounted[at]))
                    rewards[at], discounted[at] = scaled
                memory.discounted[index] = discounted
            block.rewards.append(rewards)
