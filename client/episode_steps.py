"""Turns the steps of open episodes into the items that each server is sent.

A plain step holds observations, and the rewards of the agents that act. Plain steps of several
episodes in which the same agents act become the rows of one `StepRows` for each server. The plain
step of a single episode becomes a `Step`, which a server reads just as fast.

Everything else that can happen in an episode (an agent ends, say) is kept in `Pending`, and goes
to its server in a separate item with the next message. Values that fit no array go in a separate
item, too, so that the server can name the agent whose value is wrong.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.vector_simulation import Rows
from muxrl.client.assignment import Assignment, Part, Split
from muxrl.client.episode_columns import NONE, EpisodeColumns
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.outbox import Outbox
from muxrl.client.step_values import InArrays, InDicts, StepValues, handle_rows, handle_step
from muxrl.client.transport import Transport
from muxrl.protocol.episode import unanswered
from muxrl.protocol.messages import AnyItem, Step, StepRows
from muxrl.protocol.rows import Index, Layout, NotInRows, each_array, empty, grid, index_of

_SENT_PER_TIMEOUT = 3
"""Each server hears of an open episode at least this often within its `episode_timeout_s`."""

Logged = tuple[Mapping[str, Any], Mapping[str, float]]
"""By agent: actions that were chosen elsewhere, and their log-probabilities."""


class EpisodeSteps(EpisodeColumns):
    """Adds the steps of the episodes in ``N`` slots to an outbox.

    Args:
        transports: by server id.
        assignment: which server serves which agents.
    """

    def __init__(self, transports: Mapping[str, Transport], assignment: Assignment) -> None:
        super().__init__(assignment)
        self._transports = [transports[server_id] for server_id in assignment.specs]
        self._longest_silence_s = [
            spec.episode_timeout_s / _SENT_PER_TIMEOUT or math.inf for _, spec in self._servers
        ]
        self._ids: list[str] = []
        self._split_of: list[Split | None] = []
        """By slot: how the agents of the last step are split among servers."""
        self._unanswered: set[int] = set()
        """Slots whose last step was interrupted."""
        self.actions: list[dict[str, Any]] = []
        """By slot and agent: the newest actions, of steps in dicts."""
        self.actions_in_arrays: dict[str, Rows] = {}
        """By agent ``[N, ...]``: the newest actions, of steps in arrays; new arrays each time."""

    def _grow(self, num_more: int) -> None:
        super()._grow(num_more)
        self._ids += [""] * num_more
        self._split_of += [None] * num_more
        self.actions += [{}] * num_more

    def step(
        self,
        outbox: Outbox,
        slots: Sequence[int],
        observations: Sequence[Mapping[str, Any]],
        states: Sequence[Any] | None = None,
        logged: Mapping[int, Logged] = NONE,
    ) -> None:
        """Adds the next step of some episodes; `actions` receives the answers.

        A server whose agents have not acted for long is sent its last item again. This changes
        nothing there, but keeps the episode from expiring.

        Args:
            outbox: where items are added.
            slots: of the episodes.
            observations: of each episode, by agent.
            states: of each episode, for servers that read the global state.
            logged: by slot: actions that were chosen elsewhere.

        Raises:
            AssignmentError: an agent belongs to no server; nothing has changed.
            EpisodeMisuse: a server has not answered the last step, or observations are no dict.
        """
        if self._unanswered:
            self._check_answered(slots, "observe")
        if len(slots) == 1:
            slot = slots[0]
            split, seen = self._assignment.find(observations[0])
            outbox.asked.append(partial(self._interrupt, slots))
            answered = self.actions[slot] = {}
            alone = InDicts([seen], states or [None], [answered])
            rewards = self._fresh.pop(slot, None)
            if rewards is not None:
                if not logged and self._step_alone(outbox, split, slot, alone, rewards):
                    return
                self._add_rewards(slot, rewards)
            self._ask(outbox, split, slots, index_of(slots), alone, logged)
            return
        found = [self._assignment.find(one) for one in observations]
        outbox.asked.append(partial(self._interrupt, slots))
        actions: list[dict[str, Any]] = [{} for _ in slots]
        for slot, own in zip(slots, actions, strict=True):
            self.actions[slot] = own
        values = InDicts([seen for _, seen in found], states or [None] * len(slots), actions)
        groups: dict[Split, list[int]] = {}
        for row, (split, _) in enumerate(found):
            groups.setdefault(split, []).append(row)
        for split, rows in groups.items():
            mine, part = slots, values
            if len(rows) < len(slots):
                mine, part = [slots[row] for row in rows], values.of(rows)
            paid = self._pay(split, mine, logged)
            self._ask(outbox, split, mine, index_of(mine), part, logged, paid)

    def step_in_arrays(
        self,
        outbox: Outbox,
        agents: tuple[str, ...],
        observations: Mapping[str, Rows],
        present: NDArray[np.bool_],
        state: Rows | None = None,
        copies: Sequence[int] | None = None,
    ) -> None:
        """Adds the next step of copies of a simulation; `actions_in_arrays` receives the answers.

        Args:
            outbox: where items are added.
            agents: of the simulation.
            observations: by agent id ``[N, ...]``; rows of absent agents are ignored.
            present: bool ``[N, agents]``: which agents act.
            state: float32 ``[N, state_size]``, for servers that read the global state.
            copies: the copies that step; None: all that have an episode.

        Raises:
            EpisodeMisuse: an agent is missing, or its array is of another shape or type.
        """
        num_copies, split = len(self.by_slot), self._assignment.split(agents)
        if agents != self._agents_in_arrays:
            self._agents_in_arrays = agents
            for part in split.parts:
                for agent_id in part.agents:
                    rows = empty(part.spec.agents[agent_id].action_space, (num_copies,))
                    self.actions_in_arrays[agent_id] = each_array(np.zeros_like, rows)
        own: set[str] = set()
        are_all = copies is None and bool(present.all())
        if are_all and np.count_nonzero(self.is_open) == num_copies:
            where: Index = slice(0, num_copies)
            self._acts_in_arrays[:, split.columns] = True
            values = InArrays(observations, state, where, num_copies, self.actions_in_arrays, own)
            self._ask(outbox, split, range(num_copies), where, values, NONE)
            return
        asked = self.is_open.copy() if copies is None else np.isin(range(num_copies), copies)
        groups: dict[tuple[str, ...], list[int]] = {}
        for slot in np.flatnonzero(asked & present.any(1)).tolist():
            here = agents if are_all else tuple(itertools.compress(agents, present[slot].tolist()))
            groups.setdefault(here, []).append(slot)
        for here, slots in groups.items():
            split, where = self._assignment.split(here), index_of(slots)
            self._acts_in_arrays[grid(where, split.columns)] = True
            values = InArrays(observations, state, where, num_copies, self.actions_in_arrays, own)
            self._ask(outbox, split, slots, where, values, NONE)

    def step_in_rows(
        self,
        outbox: Outbox,
        slots: Sequence[int],
        layout: Layout,
        item: StepRows,
        actions: Sequence[Any],
    ) -> None:
        """Adds the next step of some episodes, a plain one that came as rows.

        Args:
            outbox: where items are added.
            slots: of the episodes.
            layout: of the rows.
            item: the rows.
            actions: rows of each kind of action, into which the answers are written.
        """
        if self._unanswered:
            self._check_answered(slots, "observe")
        agents, rewards, paid = layout.agents, item.rewards, None
        split, where = self._assignment.split(agents), index_of(slots)
        outbox.asked.append(partial(self._interrupt, slots))
        if rewards is not None:
            if agents != split.agents:
                rewards = rewards[:, layout.places_of(split.agents)]
            at = grid(where, split.columns)
            self._returns[at] += rewards
            splits = [self._split_of[slot] for slot in slots]
            if self._is_plain_on(split) and splits.count(split) == len(slots):
                paid = rewards
            else:
                self._rewards[at] += rewards
                self._is_paid[at] |= rewards != 0.0
        values = InArrays.of_rows(layout, item.observations, item.state, actions, len(slots))
        self._ask(outbox, split, slots, where, values, NONE, paid)

    def _is_plain_on(self, split: Split) -> bool:
        """Whether every server can be sent the next step of the same agents as rows alone."""
        takes_rows = (self._transports[part.place].takes_rows for part in split.parts)
        return split.is_of_all and not self._pending and all(takes_rows)

    def _ask(
        self,
        outbox: Outbox,
        split: Split,
        slots: Sequence[int],
        where: Index,
        values: StepValues,
        logged: Mapping[int, Logged],
        paid: NDArray[np.float64] | None = None,
    ) -> None:
        """Adds a step of episodes in which the same agents act.

        Args:
            paid: rewards ``[E, agents of the split]`` that are not in the columns; see `_pay`.
        """
        is_one = len(slots) == 1
        splits, num = self._split_of, len(slots)
        if type(where) is slice:
            is_as_before = splits[where].count(split) == num
        else:
            is_as_before = [splits[slot] for slot in slots].count(split) == num
        are_arrays = isinstance(values, InArrays)
        is_single = is_one and not are_arrays
        # No reward precedes the first step in arrays: their rewards always follow a step.
        is_plain = (is_as_before or are_arrays) and split.is_of_all
        if is_plain and not (self._pending or logged or is_single):
            self._add_rows(outbox, split.parts, slots, where, values, paid)
        else:
            for part in split.parts:
                alone: Sequence[int] = range(num)
                if self._transports[part.place].takes_rows and not is_single:
                    alone = self._find_rare(part, slots, where, logged)
                if not alone:
                    self._add_rows(outbox, [part], slots, where, values)
                elif rest := [row for row in range(num) if row not in alone]:
                    mine = [slots[row] for row in rest]
                    self._add_rows(outbox, [part], mine, index_of(mine), values.of(rest))
                for row in alone:
                    self._add_alone(outbox, part, slots[row], row, values, logged)
        now = time.monotonic()
        if not is_as_before:
            self._is_known[grid(where, split.columns)] = True
            if type(where) is slice:
                splits[where] = [split] * num
            else:
                for slot in slots:
                    splits[slot] = split
        if self._done:
            for slot in self._done.keys() & slots:
                self._done[slot].difference_update(split.agents)
        if paid is None:
            self._clear_rewards(slots, where, split.wholes)
        if is_one:
            t_at, sent_at_at, num_slots = self._t_at, self._sent_at_at, len(self.by_slot)
            for part in split.parts:
                cell = slots[0] + part.place * num_slots
                t_at[cell] += 1
                sent_at_at[cell] = now
        else:
            asked = grid(split.places, where)
            self.t[asked] += 1
            self._sent_at[asked] = now
        if split.idle:
            self._pass_over(outbox, split.idle, slots, where, now)

    def _step_alone(
        self, outbox: Outbox, split: Split, slot: int, values: InDicts, rewards: Mapping[str, Any]
    ) -> bool:
        """Adds the step of a single episode as a `Step`, if it is plain.

        Returns:
            Whether it is plain; if not, nothing has changed.
        """
        if self._split_of[slot] is not split or slot in self._pending:
            return False
        if len(rewards) != len(split.agents) or not split.is_of_all:
            return False
        try:
            paid = [rewards[agent_id] for agent_id in split.agents]
        except KeyError:
            return False
        if [type(reward) for reward in paid].count(float) < len(paid):
            return False
        first, return_at = slot * len(self._assignment.agents), self._return_at
        for column, reward in zip(split.acting, paid, strict=True):
            return_at[first + column] += reward
        (seen,), (state,) = values.observations, values.given_states
        now, num_slots, t_at = time.monotonic(), len(self.by_slot), self._t_at
        for part in split.parts:
            cell, agents = slot + part.place * num_slots, part.agents
            t = t_at[cell]
            item = Step(
                self._ids[slot],
                t,
                {agent_id: seen[agent_id] for agent_id in agents},
                dict(zip(agents, paid[part.acting], strict=True)),
                state=None if part.spec.state_size is None else state,
            )
            outbox.add(part.server_id, item, partial(handle_step, values, part, 0))
            t_at[cell] = t + 1
            self._sent_at_at[cell] = now
        if slot in self._done:
            self._done[slot].difference_update(split.agents)
        if split.idle:
            self._pass_over(outbox, split.idle, [slot], slice(slot, slot + 1), now)
        return True

    def _pay(
        self, split: Split, slots: Sequence[int], logged: Mapping[int, Logged]
    ) -> NDArray[np.float64] | None:
        """Adds the rewards that were logged last to the columns.

        If the next step is plain and goes as rows, its rewards are sent at once. Then they are
        added to the returns alone.

        Returns:
            The rewards ``[E, agents of the split]`` to send at once; None: they are in the columns.
        """
        agents, splits = split.agents, self._split_of
        rewards = [self._fresh.pop(slot, None) for slot in slots]
        if (
            len(slots) > 1
            and not logged
            and [splits[slot] for slot in slots].count(split) == len(slots)
            and self._is_plain_on(split)
        ):
            try:
                flat = [given[a] for given in rewards for a in agents]  # type: ignore[index]
                num = sum(map(len, rewards))  # type: ignore[arg-type]
            except (KeyError, TypeError):
                flat, num = [], 0
            if num and num == len(flat) == [type(v) for v in flat].count(float):
                paid = np.array(flat).reshape(len(slots), len(agents))
                self._returns[grid(index_of(slots), split.columns)] += paid
                return paid
        for slot, given in zip(slots, rewards, strict=True):
            if given is not None:
                self._add_rewards(slot, given)
        return None

    def _find_rare(
        self, part: Part, slots: Sequence[int], where: Index, logged: Mapping[int, Logged]
    ) -> Sequence[int]:
        """Returns the rows whose message to this server needs more than observations and the acting
        agents' rewards since the step before."""
        pending = self._pending
        rare: set[int] = set()
        if pending or logged:
            rare.update(
                row
                for row, slot in enumerate(slots)
                if slot in logged or part.place in pending.get(slot, NONE)
            )
        t = self.t[part.place, where]
        if np.count_nonzero(t) < len(slots):
            rare.update(np.flatnonzero((t == 0) & self._is_paid[where, part.whole].any(1)).tolist())
        if part.others is not None:
            is_paid = self._is_paid[grid(where, part.others)]
            if np.count_nonzero(is_paid):
                rare.update(np.flatnonzero(is_paid.any(1)).tolist())
        return sorted(rare)

    def _add_rows(
        self,
        outbox: Outbox,
        parts: Sequence[Part],
        slots: Sequence[int],
        where: Index,
        values: StepValues,
        paid: NDArray[np.float64] | None = None,
    ) -> None:
        """Adds plain steps: one item for each server, or one for each step if it takes no rows."""
        ids = self._ids[where] if type(where) is slice else [self._ids[slot] for slot in slots]
        rewards = self._rewards[where] if paid is None else paid
        for part in parts:
            size = part.spec.state_size
            mine = rewards[:, part.columns if paid is None else part.acting]
            try:
                if not self._transports[part.place].takes_rows:
                    raise NotInRows
                item = StepRows(
                    episode_ids=ids,
                    t=self.t[part.place, where].copy(),
                    observations=[values.stacked(kind) for kind in part.layout.observed],
                    agents=part.named,
                    rewards=mine.copy(),
                    state=None if size is None else values.states(size),
                )
            except NotInRows:  # sent one by one, the server can name whose value is wrong
                if paid is not None:
                    self._rewards[grid(where, part.columns)] = mine
                    self._is_paid[grid(where, part.columns)] = True
                for row, slot in enumerate(slots):
                    self._add_alone(outbox, part, slot, row, values, NONE)
                self._clear_rewards(slots, where, [part.whole])
                continue
            outbox.add(part.server_id, item, partial(handle_rows, values, part))

    def _add_alone(
        self,
        outbox: Outbox,
        part: Part,
        slot: int,
        row: int,
        values: StepValues,
        logged: Mapping[int, Logged],
    ) -> None:
        rewards, pending = self._pop_pending(slot, part.place)
        self._is_known[slot, part.whole] |= self._is_paid[slot, part.whole]
        item = Step(
            self._ids[slot],
            int(self.t[part.place, slot]),
            values.seen(row, part),
            rewards,
            pending.terminations,
            pending.truncations,
            pending.final_observations,
            state=None if part.spec.state_size is None else values.state_of(row),
            late_rewards=pending.late_rewards,
        )
        if slot in logged:
            item.logged_actions, item.logged_log_probs = (
                {str(a): one for a, one in given.items() if str(a) in item.observations}
                for given in logged[slot]
            )
        outbox.add(part.server_id, item, partial(handle_step, values, part, row))

    def _pass_over(
        self,
        outbox: Outbox,
        places: Iterable[int],
        slots: Sequence[int],
        where: Index,
        now: float,
    ) -> None:
        """Handles servers none of whose agents act in a step."""
        for place in places:
            if self._pending:
                for slot in slots:
                    pending = self._pending.get(slot, NONE).get(place)
                    if pending is not None:
                        pending.late |= pending.ended
            is_silent = now - self._sent_at[place, where] > self._longest_silence_s[place]
            if np.count_nonzero(is_silent):
                for row in np.flatnonzero(is_silent).tolist():
                    self.keep_alive(outbox, slots[row], now, [place])

    def keep_alive(
        self, outbox: Outbox, slot: int, now: float, places: Iterable[int] | None = None
    ) -> bool:
        """Sends the last item again to servers that have heard nothing for too long.

        Args:
            outbox: where items are added.
            slot: of the episode.
            now: monotonic time.
            places: the servers to look at; None: all.

        Returns:
            Whether anything is sent.
        """
        episode = self.by_slot[slot]
        assert episode is not None
        items: dict[str, AnyItem] = {}
        for place in range(len(self._servers)) if places is None else places:
            if now - self._sent_at[place, slot] > self._longest_silence_s[place]:
                self._sent_at[place, slot] = now
                server_id, t = self._servers[place][0], int(self.t[place, slot])
                items[server_id] = (
                    Step(episode.episode_id, t - 1, {}) if t else episode.start_on(server_id)
                )
        outbox.add_all(episode, items)
        return bool(items)

    def _check_answered(self, slots: Sequence[int], what: str) -> None:
        for slot in self._unanswered.intersection(slots):
            why = unanswered(self._ids[slot], self.t[:, slot].max(), what)
            raise EpisodeMisuse(
                f"{why}; was its last step interrupted? abort_episode() closes the episode on "
                "every server"
            )

    def _interrupt(self, slots: Iterable[int]) -> None:
        self._unanswered.update(slot for slot in slots if self.is_open[slot])
