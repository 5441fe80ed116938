"""What was recorded of an open episode, seat by seat, and the pieces cut from it.

The steps of an episode are links of a chain of blocks (`Block.before`). Now and then a chain is put
together (`Record.extend`): the rows of its blocks are stacked into arrays, for each seat a piece of
its track, which becomes a `Trajectory` when it is cut.

::

    seat a   o ─a→ o ─a→ o ─a→ o            an observation for every action
    seat b   o ─b→ ·     · ──→ o ─b→        acts now and then: its rewards add up until it observes
                         cut                b's action is open at the cut and continues behind it
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.rows import each_array
from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.blocks import Block, ServedLayout
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, at, concatenated, stack

_ALL = slice(None)
Columns = tuple[Any, Any, np.ndarray, Any]


class Run(NamedTuple):
    """Blocks one after another in which the same agents act, put together.

    Attributes:
        served: who acts.
        num: how many blocks.
        versions: of the weights that chose their actions: of all, or of all but the last.
        columns: of each part, of each of its seats: observations, actions, rewards and outputs,
            ``[T, ...]``.
    """

    served: ServedLayout
    num: int
    versions: list[int]
    columns: list[list[Columns]]


class Stacked(NamedTuple):
    """What was put together once for episodes in slots that follow each other.

    Attributes:
        older: the blocks before the newest, from newer ones on; that has this, and nothing that has
            itself is freed at once.
        is_cut: whether the actions of the newest were left out.
        first, last: the slots.
        depths: of the slots that were not in all of the blocks, in how many of the newest.
        runs: of the episode in each slot.
    """

    older: list[Block]
    is_cut: bool
    first: int
    last: int
    depths: dict[int, int]
    runs: list[list[Run]]


def put_together(head: Block, num: int, slot: int, *, is_cut: bool = False) -> list[Run]:
    """Stacks what the last blocks of an episode have of it, which is not linked to them any more.

    Episodes that were in the same blocks share the arrays: those are stacked once for all of them,
    as soon as a second one asks.

    Args:
        head: the newest block.
        num: of how many blocks, with those before it.
        slot: of the episode.
        is_cut: whether the actions of the newest are left out.
    """
    is_shared = len(head.slots) > 1
    for known in head.stacked if is_shared else ():
        most = 1 + len(known.older)
        depth = known.depths.get(slot, most)
        if known.first <= slot < known.last and num <= depth and known.is_cut == is_cut:
            _unlink([head, *known.older[: num - 1]], slot)
            runs = known.runs[slot - known.first]
            return runs if num == most else _last(runs, num)
    chain, block = [head], head
    while len(chain) < num:
        assert block.before is not None
        before = block.before[block.row_of(slot)]
        assert before is not None
        chain.append(before)
        block = before
    head.num_read += 1
    is_shared = is_shared and head.num_read > 1
    first, last, depths = _shared(chain, slot) if is_shared else (slot, slot + 1, {})
    _unlink(chain, slot)
    of_each = _runs(chain[::-1], first, last, is_cut=is_cut)
    if last - first > 1:
        head.stacked.append(Stacked(chain[1:], is_cut, first, last, depths, of_each))
    return of_each[slot - first]


def _unlink(chain: Sequence[Block], slot: int) -> None:
    """Unlinks blocks of an episode: else they would keep all before them, by any of their rows."""
    for block in chain:
        assert block.before is not None
        block.before[block.row_of(slot)] = None


def _shared(chain: Sequence[Block], slot: int) -> tuple[int, int, dict[int, int]]:
    """Returns the slots that have rows in all of some blocks, as far as they follow each other.

    Args:
        chain: blocks of one episode, the newest first.
        slot: its own.

    Returns:
        The slots, and `Stacked.depths`.
    """
    slices = [one.where for one in chain if isinstance(one.where, slice)]
    if len(slices) < len(chain):
        return slot, slot + 1, {}
    first, last = max(where.start for where in slices), min(where.stop for where in slices)
    depths: dict[int, int] = {}
    for depth, (block, older) in enumerate(itertools.pairwise(chain), start=1):
        assert block.before is not None
        before = block.before[block.row_of(first) : block.row_of(last)]
        if before.count(older) < len(before):
            for slot, one in enumerate(before, start=first):
                if one is not older:
                    depths.setdefault(slot, depth)
    return first, last, depths


def _last(runs: list[Run], num: int) -> list[Run]:
    """Returns the part of some runs that is of the last blocks."""
    found: list[Run] = []
    for run in reversed(runs):
        if num <= 0:
            break
        first = max(0, run.num - num)
        num -= run.num
        if first:
            some = slice(first, None)
            columns: Any = [
                [tuple([at(one, some) for one in seat]) for seat in part] for part in run.columns
            ]
            run = Run(run.served, run.num - first, run.versions[first:], columns)
        found.append(run)
    return found[::-1]


def _runs(chain: Sequence[Block], first: int, last: int, *, is_cut: bool) -> list[list[Run]]:
    """Returns the runs of a chain, of the episode in each slot from `first` to `last`."""
    runs: list[list[Run]] = [[] for _ in range(first, last)]
    begin, num_acted = 0, len(chain) - (is_cut or chain[-1].chosen is None)
    for end in range(1, len(chain) + 1):
        if end < len(chain) and chain[end].served is chain[begin].served:
            continue
        blocks, served = chain[begin:end], chain[begin].served
        versions = [one.weights_seq_no for one in chain[begin : min(end, num_acted)]]
        rows = [slice(row, row + last - first) for row in [one.row_of(first) for one in blocks]]
        parts = []
        for j, one in enumerate(served.parts):
            columns = _columns(blocks, j, rows, len(versions))
            parts.append([_by_episode(columns, i, last - first) for i in range(one.num_seats)])
        for row, own in enumerate(runs):
            of_parts = [[seat[row] for seat in part] for part in parts]
            own.append(Run(served, len(blocks), versions, of_parts))
        begin = end
    return runs


def _columns(blocks: Sequence[Block], part: int, rows: Sequence[slice], num_acted: int) -> Columns:
    """Returns what a part has in some rows of each block, ``[T, E, S, ...]``."""
    seen: list[Any] = [one.observations[part] for one in blocks]
    paid = [one.rewards[part] for one in blocks]
    chosen: Any = [one.chosen[part] for one in blocks[:num_acted]]  # type: ignore[index]
    actions: list[Any] = [one.actions for one in chosen]
    outputs: list[Any] = [one.outputs for one in chosen]
    num = rows[0].stop - rows[0].start
    if any(len(one.slots) > num for one in blocks):
        for own in (seen, paid, actions, outputs):
            own[:] = map(at, own, rows)
    if not num_acted:
        return stack(seen), None, np.array(paid), {}
    return stack(seen), np.array(actions), np.array(paid), stack(outputs)


def _by_episode(columns: Columns, seat: int, num: int) -> list[Columns]:
    """Returns what a seat has of columns ``[T, E, S, ...]``, of each of so many episodes."""
    return list(zip(*(_by_row(at(one, (_ALL, _ALL, seat)), num) for one in columns), strict=True))


def _by_row(columns: Any, num: int) -> Iterable[Any]:
    """Returns columns ``[T, E, ...]`` of each episode, ``[T, ...]``; they are views."""
    if isinstance(columns, dict) and columns:
        parts = zip(*(_by_row(one, num) for one in columns.values()), strict=True)
        return [dict(zip(columns, part, strict=True)) for part in parts]
    if columns is None or isinstance(columns, dict):
        return itertools.repeat(columns, num)
    return list(columns.swapaxes(0, 1))


class Track:
    """The record of one seat in one life; its columns are in pieces, arrays ``[n, ...]``."""

    __slots__ = ("actions", "awaits_first", "is_terminated", "is_truncated", "key", "num_before",
                 "num_steps", "observations", "open", "outputs", "rewards", "seat_id")  # fmt: skip

    def __init__(self, seat_id: str, key: str) -> None:
        self.seat_id = seat_id
        self.key = key
        self.observations: list[Any] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[np.ndarray] = []
        self.outputs: list[Any] = []
        self.open: tuple[np.ndarray, Any] | None = None
        """The last action and its outputs, ``[1, ...]``, until its next observation comes."""
        self.awaits_first = True
        """Whether the next observation follows from no action that is recorded here."""
        self.num_steps = 0
        """Transitions since the last cut."""
        self.num_before = 0
        """Transitions cut off already."""
        self.is_terminated = False
        self.is_truncated = False

    @property
    def is_done(self) -> bool:
        return self.is_terminated or self.is_truncated

    def extend(
        self, observations: Any, actions: Any, rewards: np.ndarray, outputs: Any, num_acted: int
    ) -> None:
        """Adds what a run of blocks has of the seat, ``[T, ...]``.

        Args:
            observations: of each block.
            actions: of the first `num_acted` of them; so have `outputs`.
            rewards: of each block: what followed from the action before.
            outputs: see `Chosen`.
            num_acted: T, or T - 1 where the last one waits for its actions.
        """
        num = len(rewards)
        if self.awaits_first:
            self.awaits_first = False
            rewards = rewards[1:]
        elif self.open is not None:
            self.actions.append(self.open[0])
            self.outputs.append(self.open[1])
        self.observations.append(observations)
        self.num_steps += len(rewards)
        if len(rewards):
            self.rewards.append(rewards)
        taken = num - 1
        self.open = None
        if num_acted > taken:
            last = slice(taken, num)
            self.open = actions[last], at(outputs, last)
            actions, outputs = actions[:taken], at(outputs, slice(taken))
        if taken:
            self.actions.append(actions)
            self.outputs.append(outputs)

    def end(self, observation: Any, reward: float) -> None:
        """Adds the observation ``[1, ...]`` that follows from the open action, if there is one."""
        if self.open is None:
            return
        self.observations.append(self.last_observation() if observation is None else observation)
        self.actions.append(self.open[0])
        self.outputs.append(self.open[1])
        self.rewards.append(np.array([reward]))
        self.open = None
        self.num_steps += 1

    def last_observation(self) -> Any:
        """Returns it, ``[1, ...]``."""
        return at(self.observations[-1], slice(-1, None))

    def trajectory(self, episode_id: str, policy_id: str) -> Trajectory:
        """Returns all that there is."""
        return Trajectory(
            id=f"{episode_id}_{self.key}",
            episode_id=episode_id,
            seat_id=self.seat_id,
            policy_id=policy_id,
            observations=_one(self.observations),
            actions=_one(self.actions),
            rewards=_one(self.rewards),
            outputs=_one(self.outputs),
            t=self.num_before,
            is_terminated=self.is_terminated,
            is_truncated=self.is_truncated,
        )

    def go_on(self, *, comes_again: bool) -> None:
        """Continues behind what has been handed over.

        Args:
            comes_again: whether the last observation is that of a block whose actions were left
                out, so that it is the first of the next piece.
        """
        self.num_before += self.num_steps
        self.num_steps = 0
        self.awaits_first = comes_again
        # Copied, so that the rows beside it are not kept.
        self.observations = [] if comes_again else [each_array(np.copy, self.last_observation())]
        self.actions, self.rewards, self.outputs = [], [], []


def _one(fragments: list[Any]) -> Any:
    return fragments[0] if len(fragments) == 1 else concatenated(fragments)


class Record:
    """One training episode.

    Attributes:
        paid_late: who was paid after its end, so that no action learns from it; "": nobody was.

    Args:
        episode_id: unique.
        seats: who may appear, by seat id.
    """

    def __init__(self, episode_id: str, seats: Mapping[str, Seat]) -> None:
        self._episode_id = episode_id
        self._seats = seats
        self.paid_late = ""
        self.tracks: dict[str, Track] = {}
        """By seat id, those of the lives that seats lead now."""
        self._lives: dict[str, int] = {}
        """By seat that has come back after its end, which of its lives this is; others have one."""
        self._ended: list[Track] = []
        """Of lives before, until the next cut."""
        self._versions: list[int] = []
        """Of the weights, at each env step since the last cut."""
        self.open_version: int | None = None
        """Of the last actions, until an env step follows from them."""
        self._num_cut_steps = 0
        self.is_terminated = False
        self.is_truncated = False

    def extend(self, head: Block, num: int, slot: int, *, is_cut: bool = False) -> None:
        """Adds the last blocks of the episode, of which the newest may wait for its actions.

        Args:
            head, num, slot, is_cut: see `put_together`.
        """
        tracks = self.tracks
        for run in put_together(head, num, slot, is_cut=is_cut):
            num_acted = len(run.versions)
            for one, columns in zip(run.served.parts, run.columns, strict=True):
                for seat, own in zip(one.seats, columns, strict=True):
                    track = tracks.get(seat.seat_id)
                    if track is None:
                        key = self._key(seat.seat_id)
                        track = tracks[seat.seat_id] = Track(seat.seat_id, key)
                    track.extend(*own, num_acted)
            # An env step has followed from the actions of each block that another one came after.
            if self.open_version is not None:
                self._versions.append(self.open_version)
            self._versions += run.versions[: run.num - 1]
            self.open_version = run.versions[-1] if num_acted == run.num else None

    def note_env_step(self) -> None:
        """Notes an env step after which nobody acts."""
        if self.open_version is not None:
            self._versions.append(self.open_version)
            self.open_version = None

    def begin_again(self, seat_id: str) -> None:
        """Begins a new life of a seat that comes back after its end."""
        before = self.tracks.pop(seat_id, None)
        if before is not None and before.num_steps:
            self._ended.append(before)
        self._lives[seat_id] = self._lives.get(seat_id, 1) + 1

    def _key(self, seat_id: str) -> str:
        """What a seat's life is called in the episode: replays join its parts by that."""
        life = self._lives.get(seat_id)
        return seat_id if life is None else f"{seat_id}~{life}"

    @property
    def has_more(self) -> bool:
        """Whether anything was put together since the last cut."""
        return bool(self._versions) or self.open_version is not None

    def cut(self, coming: Collection[str] = ()) -> Chunk | None:
        """Returns what was put together since the last cut, None if no step was; it continues.

        Args:
            coming: seats in the last block, which comes once more, with its actions.
        """
        if not self._versions:
            for seat_id in coming:
                self.tracks[seat_id].go_on(comes_again=True)
            return None
        chunk = self._chunk()
        for seat_id, track in list(self.tracks.items()):
            if track.is_done:
                del self.tracks[seat_id]
                continue
            track.go_on(comes_again=seat_id in coming)
        return chunk

    def finish(self, *, is_aborted: bool) -> Chunk | None:
        """Returns the rest; an aborted episode counts as truncated at its last full step."""
        if not self._versions:
            return None
        if is_aborted and not self.is_terminated and not self.is_truncated:
            self.is_truncated = True
            for track in self.tracks.values():
                if not track.is_done:
                    track.is_truncated = True
        return self._chunk()

    def _chunk(self) -> Chunk:
        found = [track for track in self.tracks.values() if track.num_steps]
        if self._ended:  # the lives of a seat one after another: RLlib batches them by seat
            order = list(self._seats)
            found = sorted([*self._ended, *found], key=lambda one: order.index(one.seat_id))
            self._ended = []
        chunk = Chunk(
            self._episode_id,
            self._num_cut_steps,
            [one.trajectory(self._episode_id, self._seats[one.seat_id].policy_id) for one in found],
            self._versions,
            self.is_terminated,
            self.is_truncated,
        )
        self._num_cut_steps += chunk.num_env_steps
        self._versions = []
        return chunk
