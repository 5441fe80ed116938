"""Cuts what training episodes have recorded into batches, and hands them to the learner."""

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
    """When recorded steps make a batch.

    Attributes:
        env_steps: number of recorded env steps that make a batch.
        needs_whole_episodes: whether batches hold ended episodes only (QMIX).
        max_sequence_steps: most env steps of a piece, into which longer episodes are cut; None:
            episodes stay whole.
        cuts_after_frames: whether a batch holds everything that its last frame has brought, even
            if that is more than `env_steps`.
    """

    env_steps: int
    needs_whole_episodes: bool = False
    max_sequence_steps: int | None = None
    cuts_after_frames: bool = False


class Batches:
    """Cuts records into chunks, and delivers them as soon as they make a batch.

    Args:
        table: the open episodes.
        feed: takes complete batches.
        far_values: looks at each batch.
        dropping: returns a context for work on an episode, which drops the episode if that fails.
        rule: when recorded steps make a batch.
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
        """The records of episodes that have ended in this frame, and whether they were aborted."""
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
        """Number of env steps that may be recorded before the next batch is cut."""
        is_free = self._rule.needs_whole_episodes or self._rule.cuts_after_frames
        return math.inf if is_free else self.num_missing

    def add(self, num_env_steps: int) -> None:
        """Counts env steps that were recorded in open episodes."""
        if not self._rule.needs_whole_episodes:
            self._num_new_steps += num_env_steps

    def end(self, record: Record, *, is_aborted: bool) -> None:
        """Keeps the record of an ended episode until its frame has been processed."""
        self._over[record] = is_aborted

    def cut_if_due(self, *, is_after_frame: bool = False) -> None:
        """Delivers everything recorded, also in open episodes, if it makes a batch."""
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

        Simulations in lockstep end their episodes in one frame. If each end were delivered at once,
        the simulations would be held at the gate until all but the last batch had been learned.

        Args:
            long: records of many blocks, to be put together; emptied, as they are long no more.
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
        """Keeps the rest of the episodes that have ended in this frame; some may share blocks."""
        over, self._over = self._over, {}
        for record in self._put_together([*over]):
            self._keep_whole(record.finish(is_aborted=over[record]))

    def _cut(self, records: Sequence[Record | None]) -> list[Chunk | None]:
        """Returns what open training episodes have recorded since their last cut."""
        cut = self._put_together([one for one in records if one], continues=True, is_cut=True)
        for record in cut:
            self._table.num_new[record.slot] = 0
        return [record.cut() for record in cut]

    def _put_together(self, records: Sequence[Record], **how: bool) -> list[Record]:
        """Puts records together; returns those for which nothing has failed."""
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
        """Keeps an ended episode, or a piece of one that is learned like an episode."""
        self._keep(chunk)
        if self._rule.needs_whole_episodes and chunk is not None:
            self._num_new_steps += chunk.num_env_steps

    def _deliver(self) -> None:
        batch, self._chunks = self._chunks, []
        self._num_new_steps = 0
        if batch:
            self._far_values.look_at(batch)
            self._feed.put(batch)
