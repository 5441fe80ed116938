"""The record of an open episode, seat by seat, and the pieces cut from it.

A record keeps the blocks that its episode was in. Now and then these are put together (`Stacks`):
their rows are stacked into arrays, which extend the track of each seat. A cut turns tracks into
`Trajectory` objects.

::

    seat a   o ─a→ o ─a→ o ─a→ o            an observation for every action
    seat b   o ─b→ ·     · ──→ o ─b→        acts now and then: its rewards add up until it observes
                         cut                b's action is open at the cut, and continues after it
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.rows import each_array, pick
from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.blocks import Block, ServedLayout
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, concatenated, stack

_ALL = slice(None)
Columns = tuple[Any, Any, np.ndarray, Any]


class Run(NamedTuple):
    """Consecutive blocks in which the same agents act, put together for one episode.

    Attributes:
        served: the agents that act.
        num: number of blocks.
        versions: of the weights that chose the blocks' actions; the last block may have none.
        columns: for each part, for each of its seats: observations, actions, rewards and outputs,
            ``[T, ...]``.
    """

    served: ServedLayout
    num: int
    versions: list[int]
    columns: list[list[Columns]]

    def some(self, where: slice) -> Run:
        """Returns some of the blocks."""
        columns: Any = [
            [tuple([pick(one, where) for one in seat]) for seat in part] for part in self.columns
        ]
        return Run(self.served, where.stop - where.start, self.versions[where], columns)


class Stacks:
    """Puts records together; episodes that were in the same blocks share the stacked arrays.

    Args:
        records: all of them; the one with most blocks is to be put together first.
        continues: whether each record keeps its newest block as its first one, to be put together
            later with its actions.
        is_cut: whether records are cut now, so that the newest block is their last observation.
    """

    def __init__(
        self, records: Iterable[Record], *, continues: bool = False, is_cut: bool = False
    ) -> None:
        self._continues, self._is_cut = continues, is_cut
        self._num_of = Counter(one.blocks[-1] for one in records if one.blocks)
        """By block: the number of records that end with it."""
        self._known: dict[Block, tuple[list[Block], int, list[list[Run]]]] = {}
        """By newest block: the blocks that were stacked, the first slot, and the runs of that slot
        and of the slots after it."""

    def put_together(self, record: Record) -> None:
        """Moves the rows of a record's blocks into its tracks."""
        blocks = record.blocks[:-1] if self._continues and not self._is_cut else record.blocks
        record.take(self._runs_of(blocks, record.slot) if blocks else [], len(blocks))
        record.blocks = record.blocks[-1:] if self._continues else []

    def _runs_of(self, blocks: list[Block], slot: int) -> list[Run]:
        newest, num = blocks[-1], len(blocks)
        longer, first, of_rows = self._known.get(newest, ([], 0, []))
        if longer[-num:] == blocks and first <= slot < first + len(of_rows):
            return _between(of_rows[slot - first], len(longer) - num, len(longer))
        first, last = slot, slot + 1
        where: list[Any] = [one.where for one in blocks]
        if self._num_of[newest] > 1 and all(isinstance(one, slice) for one in where):
            first, last = max(one.start for one in where), min(one.stop for one in where)
        begins = [one.row_of(first) for one in blocks]
        rows = [slice(begin, begin + last - first) for begin in begins]
        of_rows = _runs(blocks, rows, num - (self._is_cut or newest.chosen is None))
        if len(of_rows) > 1:
            self._known[newest] = blocks, first, of_rows
        return of_rows[slot - first]


def _between(runs: list[Run], first: int, last: int) -> list[Run]:
    """Returns the part of some runs that lies in the blocks from `first` to `last`."""
    found: list[Run] = []
    for run in runs:
        start, stop = max(0, first), min(run.num, last)
        if start < stop:
            found.append(run if stop - start == run.num else run.some(slice(start, stop)))
        first, last = first - run.num, last - run.num
    return found


def _runs(blocks: Sequence[Block], rows: Sequence[slice], num_acted: int) -> list[list[Run]]:
    """Returns the runs of consecutive blocks, for each of some rows.

    Args:
        blocks: the blocks.
        rows: the rows to take of each block, equally many.
        num_acted: number of blocks that have actions.
    """
    num_rows = rows[0].stop - rows[0].start
    runs: list[list[Run]] = [[] for _ in range(num_rows)]
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end < len(blocks) and blocks[end].served is blocks[begin].served:
            continue
        own, served = blocks[begin:end], blocks[begin].served
        versions = [one.weights_seq_no for one in blocks[begin : min(end, num_acted)]]
        parts = []
        for j, one in enumerate(served.parts):
            columns = _columns(own, j, rows[begin:end], len(versions))
            parts.append([_by_row(columns, i, num_rows) for i in range(one.num_seats)])
        for row, found in enumerate(runs):
            of_parts = [[seat[row] for seat in part] for part in parts]
            found.append(Run(served, len(own), versions, of_parts))
        begin = end
    return runs


def _columns(blocks: Sequence[Block], part: int, rows: Sequence[slice], num_acted: int) -> Columns:
    """Returns the columns of a part, for some rows of each block, ``[T, E, S, ...]``."""
    seen: list[Any] = [one.observations[part] for one in blocks]
    paid = [one.rewards[part] for one in blocks]
    chosen: Any = [one.chosen[part] for one in blocks[:num_acted]]  # type: ignore[index]
    actions: list[Any] = [one.actions for one in chosen]
    outputs: list[Any] = [one.outputs for one in chosen]
    num = rows[0].stop - rows[0].start
    if any(len(one.slots) > num for one in blocks):
        for own in (seen, paid, actions, outputs):
            own[:] = map(pick, own, rows)
    if not num_acted:
        return stack(seen), None, np.array(paid), {}
    return stack(seen), np.array(actions), np.array(paid), stack(outputs)


def _by_row(columns: Columns, seat: int, num: int) -> list[Columns]:
    """Returns for each episode the columns of a seat, from columns ``[T, E, S, ...]``."""
    return list(zip(*(_views(pick(one, (_ALL, _ALL, seat)), num) for one in columns), strict=True))


def _views(columns: Any, num: int) -> Iterable[Any]:
    """Returns for each episode its columns ``[T, ...]``, as views of columns ``[T, E, ...]``."""
    if isinstance(columns, dict) and columns:
        parts = zip(*(_views(one, num) for one in columns.values()), strict=True)
        return [dict(zip(columns, part, strict=True)) for part in parts]
    if columns is None or isinstance(columns, dict):
        return itertools.repeat(columns, num)
    return list(columns.swapaxes(0, 1))


class Track:
    """The record of one life of a seat, with a row for each block in which it acts.

    The columns are lists of pieces, arrays ``[n, ...]``: observations, the actions on them, and the
    rewards that followed from the action before; the reward of the first row is never used.
    """

    __slots__ = ("actions", "is_terminated", "is_truncated", "key", "num_before", "num_rows",
                 "observations", "outputs", "rewards", "seat_id")  # fmt: skip

    def __init__(self, seat_id: str, key: str) -> None:
        self.seat_id = seat_id
        self.key = key
        self.observations: list[Any] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[np.ndarray] = []
        self.outputs: list[Any] = []
        self.num_rows = 0
        """Rows since the last cut."""
        self.num_before = 0
        """Transitions before the last cut."""
        self.is_terminated = False
        self.is_truncated = False

    @property
    def is_done(self) -> bool:
        return self.is_terminated or self.is_truncated

    def extend(self, observations: Any, actions: Any, rewards: np.ndarray, outputs: Any) -> None:
        """Adds the seat's columns of a run of blocks, ``[T, ...]``; the last block may lack its
        action and outputs."""
        self.observations.append(observations)
        self.rewards.append(rewards)
        self.num_rows += len(rewards)
        if actions is not None:
            self.actions.append(actions)
            self.outputs.append(outputs)

    def end(self, observation: Any, reward: float, *, is_truncated: bool) -> None:
        """Adds what followed from the last action.

        Args:
            observation: ``[1, ...]``; None: the last observation once more.
            reward: the reward of the last action.
            is_truncated: whether the seat is truncated; else it terminates.
        """
        self.observations.append(
            self._last(self.observations) if observation is None else observation
        )
        self.rewards.append(np.array([reward]))
        self.num_rows += 1
        self.is_truncated, self.is_terminated = is_truncated, not is_truncated

    @staticmethod
    def _last(pieces: list[Any]) -> Any:
        return pick(pieces[-1], slice(-1, None))

    def trajectory(self, episode_id: str, policy_id: str) -> Trajectory:
        """Returns a trajectory with all rows since the last cut."""
        actions, outputs, num = _one(self.actions), _one(self.outputs), self.num_rows - 1
        if len(actions) > num:  # nothing has followed from the last action
            actions, outputs = actions[:num], pick(outputs, slice(num))
        return Trajectory(
            id=f"{episode_id}_{self.key}",
            episode_id=episode_id,
            seat_id=self.seat_id,
            policy_id=policy_id,
            observations=_one(self.observations),
            actions=actions,
            rewards=_one(self.rewards)[1:],
            outputs=outputs,
            t=self.num_before,
            is_terminated=self.is_terminated,
            is_truncated=self.is_truncated,
        )

    def go_on(self, *, comes_again: bool) -> None:
        """Continues after a cut.

        Args:
            comes_again: whether the last row's block will be put together again, with its actions;
                else the last row has an open action, and is the first row of the next piece.
        """
        self.num_before += self.num_rows - 1
        self.num_rows = int(not comes_again)
        for pieces in (self.observations, self.actions, self.rewards, self.outputs):
            # Copied, so that the arrays around these rows can be freed.
            pieces[:] = [] if comes_again else [each_array(np.copy, self._last(pieces))]


def _one(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else concatenated(pieces)


class Record:
    """The record of one training episode.

    Attributes:
        episode_id: unique.
        slot: of the episode.
        blocks: its blocks that have not been put together.
        paid_late: an agent or seat that got a reward after its end, from which no action learns;
            "": there was none.
        is_terminated, is_truncated: whether the episode is over.

    Args:
        episode_id: see above.
        seats: the seats that may appear, by seat id.
    """

    def __init__(self, episode_id: str, seats: Mapping[str, Seat]) -> None:
        self.episode_id = episode_id
        self.slot = 0
        self.blocks: list[Block] = []
        self.paid_late = ""
        self.is_terminated = False
        self.is_truncated = False
        self._seats = seats
        self._changes: list[tuple[int, Callable[[], None]]] = []
        """Changes to make, each with the number of blocks that come before it."""
        self._tracks: dict[str, Track] = {}
        """By seat id: the track of its current life."""
        self._lives: dict[str, int] = {}
        """By seat that has come back after its end: the number of its current life, from 2 on."""
        self._ended: list[Track] = []
        """Tracks of earlier lives, until the next cut."""
        self._versions: list[int] = []
        """Versions of the weights, one for each env step since the last cut."""
        self._open_version: int | None = None
        """Version of the weights of the last actions, until an env step follows from them."""
        self._num_cut_steps = 0

    def after(self, change: Callable[[], None]) -> None:
        """Makes a change as soon as the blocks so far have been put together."""
        if self.blocks:
            self._changes.append((len(self.blocks), change))
        else:
            change()

    def take(self, runs: list[Run], num: int) -> None:
        """Adds the runs of its first `num` blocks to the tracks, and makes changes in between."""
        first = 0
        for last, change in self._changes:
            self._extend(_between(runs, first, last))
            change()
            first = last
        self._extend(_between(runs, first, num))
        self._changes = []

    def _extend(self, runs: list[Run]) -> None:
        for run in runs:
            for one, columns in zip(run.served.parts, run.columns, strict=True):
                for seat, own in zip(one.seats, columns, strict=True):
                    track = self._tracks.get(seat.seat_id)
                    if track is None:
                        key = self._key(seat.seat_id)
                        track = self._tracks[seat.seat_id] = Track(seat.seat_id, key)
                    track.extend(*own)
            # An env step has followed from the actions of each block before another block.
            self.note_env_step()
            self._versions += run.versions[: run.num - 1]
            self._open_version = run.versions[-1] if len(run.versions) == run.num else None

    def note_env_step(self) -> None:
        """Notes that an env step has followed from the last actions."""
        if self._open_version is not None:
            self._versions.append(self._open_version)
            self._open_version = None

    def note_none(self) -> None:
        """Notes that no env step follows from the last actions: all seats had ended before."""
        self._open_version = None

    def end_seat(
        self, seat_id: str, observation: Any, reward: float, *, is_truncated: bool
    ) -> None:
        """Ends the life of a seat; see `Track.end`."""
        if seat_id in self._tracks:
            self._tracks[seat_id].end(observation, reward, is_truncated=is_truncated)

    def begin_again(self, seat_id: str) -> None:
        """Begins a new life of a seat that comes back after its end."""
        before = self._tracks.pop(seat_id, None)
        if before is not None and before.num_rows > 1:
            self._ended.append(before)
        self._lives[seat_id] = self._lives.get(seat_id, 1) + 1

    def _key(self, seat_id: str) -> str:
        """Returns the name of a seat's current life, by which replays join its pieces."""
        life = self._lives.get(seat_id)
        return seat_id if life is None else f"{seat_id}~{life}"

    def cut(self) -> Chunk | None:
        """Returns what was put together since the last cut, None without a step; continues."""
        coming: Collection[str] = self.blocks[-1].served.seat_ids if self.blocks else ()
        if not self._versions:
            for seat_id in coming:
                self._tracks[seat_id].go_on(comes_again=True)
            return None
        chunk = self._chunk()
        for seat_id, track in [*self._tracks.items()]:
            if track.is_done:
                del self._tracks[seat_id]
            else:
                track.go_on(comes_again=seat_id in coming)
        return chunk

    def finish(self, *, is_aborted: bool) -> Chunk | None:
        """Returns the rest; an aborted episode counts as truncated at its last complete step."""
        if not self._versions:
            return None
        if is_aborted and not self.is_terminated and not self.is_truncated:
            self.is_truncated = True
            for track in self._tracks.values():
                if not track.is_done:
                    track.is_truncated = True
        return self._chunk()

    def _chunk(self) -> Chunk:
        found = [track for track in self._tracks.values() if track.num_rows > 1]
        if self._ended:  # all lives of a seat together, since RLlib batches them by seat
            order = list(self._seats)
            found = sorted([*self._ended, *found], key=lambda one: order.index(one.seat_id))
            self._ended = []
        chunk = Chunk(
            self.episode_id,
            self._num_cut_steps,
            [one.trajectory(self.episode_id, self._seats[one.seat_id].policy_id) for one in found],
            self._versions,
            self.is_terminated,
            self.is_truncated,
        )
        self._num_cut_steps += chunk.num_env_steps
        self._versions = []
        return chunk
