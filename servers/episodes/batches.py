"""The batches of a server: what its training episodes have recorded, cut and handed on to learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from muxrl.servers.episodes.far_values import FarValues
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.record import Record, Stacks
from muxrl.servers.episodes.table import EpisodeTable
from muxrl.servers.episodes.trajectories import Chunk


class BatchRule(NamedTuple):
    """When what was recorded makes a batch.

    Attributes:
        env_steps: that make one.
        needs_whole_episodes: it holds ended episodes only (QMIX), else whatever there is.
        max_sequence_steps: longer ones come in pieces of so many env steps; None: they are whole.
        cuts_after_frames: it holds all that its last frame has brought, of however many episodes,
            be it more than `env_steps`.
    """

    env_steps: int
    needs_whole_episodes: bool = False
    max_sequence_steps: int | None = None
    cuts_after_frames: bool = False


class Batches:
    """Cuts records into chunks, and delivers these as soon as they make a batch.

    Args:
        table: the open episodes.
        feed: where complete batches go.
        far_values: looks at each batch.
        dropping: a context for what is done with an episode, which it drops if that fails.
        rule: when they make a batch.
    """

    def __init__(
        self,
        table: EpisodeTable,
        feed: Feed,
        far_values: FarValues,
        dropping: Callable[[str], AbstractContextManager[None]],
        rule: BatchRule,
    ) -> None:
        self._table = table
        self._feed = feed
        self._far_values = far_values
        self._dropping = dropping
        self._rule = rule
        self._over: dict[Record, bool] = {}
        """Of episodes that have ended in this frame; whether they were aborted."""
        self._chunks: list[Chunk] = []
        self._num_new_steps = 0
        feed.share_collected = lambda: self._num_new_steps / self._rule.env_steps

    @property
    def pending(self) -> list[Chunk]:
        """Chunks that wait for their batch to be complete."""
        return list(self._chunks)

    def restore(self, pending: Sequence[Chunk]) -> None:
        """Continues with chunks that were pending."""
        self._chunks = list(pending)
        self._num_new_steps = sum(chunk.num_env_steps for chunk in self._chunks)

    @property
    def num_missing(self) -> int:
        """Env steps until the next batch is complete."""
        return self._rule.env_steps - self._num_new_steps

    @property
    def room(self) -> float:
        """How many env steps may be recorded before the next batch is cut."""
        is_free = self._rule.needs_whole_episodes or self._rule.cuts_after_frames
        return math.inf if is_free else self.num_missing

    def add(self, num_env_steps: int) -> None:
        """Counts env steps that were recorded of open episodes."""
        if not self._rule.needs_whole_episodes:
            self._num_new_steps += num_env_steps

    def end(self, record: Record, *, is_aborted: bool) -> None:
        """Keeps the rest of an episode, once its frame has been processed."""
        self._over[record] = is_aborted

    def cut_if_due(self, *, is_after_frame: bool = False) -> None:
        """Delivers all that has been recorded, of open episodes too, if it makes a batch."""
        if self._rule.needs_whole_episodes or self._num_new_steps < self._rule.env_steps:
            return
        if self._rule.cuts_after_frames and not is_after_frame:
            return
        self.keep_ended()
        for chunk in self._cut([self._table.records[s] for s in self._table.slot_of.values()]):
            self._keep(chunk)
        self._deliver()

    def cut_long(self, slots: Sequence[int]) -> None:
        """Cuts episodes that are long enough to be learned in pieces."""
        table, most = self._table, self._rule.max_sequence_steps
        if not self._rule.needs_whole_episodes or most is None:
            return
        if long := [table.records[slot] for slot in slots if table.num_new[slot] >= most]:
            for chunk in self._cut(long):
                self._keep_whole(chunk)

    def finish_frame(self, long: list[Record]) -> None:
        """Delivers what waits for the end of a frame.

        Simulations in lockstep end their episodes in one frame. Delivered one by one, these would
        hold the simulations at the gate until all but the last batch had been learned.

        Args:
            long: records of many blocks, which are put together, and are long no more.
        """
        if self._over:
            self.keep_ended()
        if long:
            self._put_together([one for one in long if len(one.blocks) > 1], continues=True)
            long.clear()
        if self._rule.cuts_after_frames:
            self.cut_if_due(is_after_frame=True)
        if self._rule.needs_whole_episodes and self._num_new_steps >= self._rule.env_steps:
            self._deliver()

    def keep_ended(self) -> None:
        """Keeps the rest of those that have ended in this frame: in lockstep they share blocks."""
        over, self._over = self._over, {}
        for record in self._put_together([*over]):
            self._keep_whole(record.finish(is_aborted=over[record]))

    def _cut(self, records: Sequence[Record | None]) -> list[Chunk | None]:
        """Returns what open training episodes have recorded since they were cut last."""
        cut = self._put_together([one for one in records if one], continues=True, is_cut=True)
        for record in cut:
            self._table.num_new[record.slot] = 0
        return [record.cut() for record in cut]

    def _put_together(self, records: Sequence[Record], **how: bool) -> list[Record]:
        """Puts records together; returns those with which nothing has failed."""
        stacks, sound = Stacks(records, **how), set()
        for record in sorted(records, key=lambda one: -len(one.blocks)):
            with self._dropping(record.episode_id):
                stacks.put_together(record)
                sound.add(record)
        return [record for record in records if record in sound]

    def _keep(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self._chunks.append(chunk)

    def _keep_whole(self, chunk: Chunk | None) -> None:
        """Keeps an episode, or the piece of one that is learned like an episode."""
        self._keep(chunk)
        if self._rule.needs_whole_episodes and chunk is not None:
            self._num_new_steps += chunk.num_env_steps

    def _deliver(self) -> None:
        batch, self._chunks = self._chunks, []
        self._num_new_steps = 0
        if batch:
            self._far_values.look_at(batch)
            self._feed.put(batch)
