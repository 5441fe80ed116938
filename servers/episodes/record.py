"""What was recorded of an open episode, seat by seat, and the pieces cut from it.

The steps of an episode are links of a chain of blocks (`Block.before`). Now and then a chain is put
together (`Record.extend`): the rows of its blocks are stacked into arrays, for each seat a piece of
its track, which becomes a `Trajectory` when it is cut.

::

    seat a   o ─a→ o ─a→ o ─a→ o            an observation for every action
    seat b   o ─b→ ·     · ──→ o ─b→        acts now and then: its rewards add up until it observes
                         cut                b's action is open at the cut and goes on behind it
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.blocks import Block, ServedLineup
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, at, concatenated, stack

_ALL = slice(None)


class Run(NamedTuple):
    """Blocks one after another in which the same agents act, put together.

    Attributes:
        served: who acts.
        num: how many blocks.
        versions: of the weights that chose their actions: of all, or of all but the last.
        columns: of each part its observations, actions, rewards and outputs, ``[T, S, ...]`` of one
            episode, or ``[T, E, S, ...]`` of all.
    """

    served: ServedLineup
    num: int
    versions: list[int]
    columns: list[tuple[Any, Any, np.ndarray, Any]]


class Stacked(NamedTuple):
    """What episodes in slots that follow each other have in common.

    Attributes:
        chain: the blocks that all of them were in.
        first, last: their slots.
        runs: of them all.
    """

    chain: list[Block]
    first: int
    last: int
    runs: list[Run]


def put_together(head: Block, num: int, slot: int) -> tuple[list[Run], int | None]:
    """Stacks what the last blocks of an episode have of it.

    Episodes that were in the same blocks share the arrays: those are stacked once for all of them,
    as soon as a second one asks.

    Args:
        head: the newest block.
        num: of how many blocks, with those before it.
        slot: of the episode.

    Returns:
        The runs, and the episode's row in their arrays; None: they are its own.
    """
    chain: list[Block] = []
    block: Block | None = head
    for _ in range(num):
        assert block is not None
        before, row = block.before, block.row_of(slot)
        assert before is not None
        chain.append(block)
        # Else blocks would keep all before them, by the links of any episode that was in them.
        block, before[row] = before[row], None
    chain.reverse()
    if len(head.slots) == 1:
        return _runs(chain, slot, slot + 1, slot), None
    for known in head.stacked:
        if known.first <= slot < known.last and known.chain[-num:] == chain:
            runs = known.runs if len(known.chain) == num else _last(known.runs, num)
            return runs, slot - known.first
    head.num_read += 1
    if head.num_read > 1:
        first, last = _shared(chain)
        if last - first > 1:
            runs = _runs(chain, first, last, None)
            head.stacked.append(Stacked(chain, first, last, runs))
            return runs, slot - first
    return _runs(chain, slot, slot + 1, slot), None


def _shared(chain: Sequence[Block]) -> tuple[int, int]:
    """Returns the slots that were in all of some blocks, as far as they follow each other."""
    wheres = [one.where for one in chain if isinstance(one.where, slice)]
    if len(wheres) < len(chain):
        return 0, 0
    return max(where.start for where in wheres), min(where.stop for where in wheres)


def _last(runs: list[Run], num: int) -> list[Run]:
    """Returns the part of some runs that is of the last blocks."""
    found: list[Run] = []
    for run in reversed(runs):
        if num <= 0:
            break
        first = max(0, run.num - num)
        num -= run.num
        if first:
            columns = [tuple(at(one, slice(first, None)) for one in part) for part in run.columns]
            run = Run(run.served, run.num - first, run.versions[first:], columns)
        found.append(run)
    return found[::-1]


def _runs(chain: Sequence[Block], first: int, last: int, slot: int | None) -> list[Run]:
    """Returns the runs of a chain: of the episode in a slot, or of those in all slots to `last`."""
    runs = []
    begin = 0
    for end in range(1, len(chain) + 1):
        if end < len(chain) and chain[end].served is chain[begin].served:
            continue
        blocks = chain[begin:end]
        versions = [one.weights_seq_no for one in blocks if one.chosen is not None]
        rows: list[Any] = [one.row_of(first if slot is None else slot) for one in blocks]
        if slot is None:
            rows = [slice(row, row + last - first) for row in rows]
        columns = [
            _columns(blocks, j, rows, len(versions)) for j in range(len(blocks[0].served.parts))
        ]
        runs.append(Run(blocks[0].served, len(blocks), versions, columns))
        begin = end
    return runs


def _columns(
    blocks: Sequence[Block], part: int, rows: list[Any], num_acted: int
) -> tuple[Any, Any, np.ndarray, Any]:
    acted: Any = [one.chosen[part] for one in blocks[:num_acted]]  # type: ignore[index]
    seen, paid = [one.observations[part] for one in blocks], [one.rewards[part] for one in blocks]
    if all(len(one.slots) == 1 for one in blocks):
        return (
            concatenated(seen),
            np.concatenate([one.actions for one in acted]) if acted else None,
            np.concatenate(paid),
            concatenated([one.outputs for one in acted]) if acted else {},
        )
    pairs = list(zip(acted, rows, strict=False))
    return (
        stack([at(one, row) for one, row in zip(seen, rows, strict=True)]),
        np.array([one.actions[row] for one, row in pairs]) if acted else None,
        np.array([one[row] for one, row in zip(paid, rows, strict=True)]),
        stack([at(one.outputs, row) for one, row in pairs]) if acted else {},
    )


class Track:
    """The record of one seat in one life; its columns are in pieces, arrays ``[n, ...]``."""

    __slots__ = ("actions", "awaits_first", "is_terminated", "is_truncated", "key", "num_before",
                 "num_lookback", "num_steps", "observations", "open", "outputs", "rewards",
                 "seat_id")  # fmt: skip

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
        self.num_lookback = 0
        """How many at the front have been handed over, and are kept for recurrent modules."""
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
        taken = num - 1
        if len(rewards):
            self.rewards.append(rewards)
        if taken:
            self.actions.append(actions[:taken])
            self.outputs.append(at(outputs, slice(taken)))
        self.open = None
        if num_acted > taken:
            last = slice(taken, taken + 1)
            self.open = actions[last], at(outputs, last)

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
            num_lookback=self.num_lookback,
            is_terminated=self.is_terminated,
            is_truncated=self.is_truncated,
        )

    def go_on(self, lookback: int, *, is_waiting: bool) -> None:
        """Goes on behind what has been handed over.

        Args:
            lookback: transitions that are kept of it.
            is_waiting: whether the last observation is that of a block which waits for its actions,
                so that it is the first of the next piece.
        """
        num = sum(map(len, self.actions)) if lookback else 0
        kept = min(lookback, num)
        self.num_before += self.num_steps
        self.num_steps, self.num_lookback = 0, kept
        self.awaits_first = is_waiting
        if is_waiting and not kept:
            self.observations, self.actions, self.rewards, self.outputs = [], [], [], []
            return
        seen = _one(self.observations)
        last = slice(_len(seen) - kept - 1, _len(seen) - is_waiting)
        self.observations = [_copied(at(seen, last))]
        for name in ("actions", "rewards", "outputs"):
            pieces = getattr(self, name)
            tail = slice(num - kept, None)
            setattr(self, name, [_copied(at(_one(pieces), tail))] if kept else [])


def _one(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else concatenated(pieces)


def _copied(rows: Any) -> Any:
    """Returns rows that do not keep those beside them."""
    if isinstance(rows, Mapping):
        return {key: _copied(part) for key, part in rows.items()}
    return rows.copy()


def _len(rows: Any) -> int:
    while isinstance(rows, Mapping):
        rows = next(iter(rows.values()))
    return len(rows)


class Record:
    """One training episode.

    Attributes:
        paid_late: who was paid after its end, so that no action learns from it; "": nobody was.

    Args:
        episode_id: unique.
        seats: who may appear, by seat id.
        lookback: steps that a piece has of the one before it; 1 for recurrent modules.
    """

    def __init__(self, episode_id: str, seats: Mapping[str, Seat], lookback: int) -> None:
        self._episode_id = episode_id
        self._seats = seats
        self._lookback = lookback
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

    def extend(self, head: Block, num: int, slot: int) -> None:
        """Adds the last blocks of the episode, of which the newest may wait for its actions."""
        runs, row = put_together(head, num, slot)
        tracks = self.tracks
        for run in runs:
            num_acted = len(run.versions)
            for one, (seen, actions, rewards, outputs) in zip(
                run.served.parts, run.columns, strict=True
            ):
                for i, seat in enumerate(one.part.seats):
                    index = (_ALL, i) if row is None else (_ALL, row, i)
                    track = tracks.get(seat.seat_id)
                    if track is None:
                        key = self._key(seat.seat_id)
                        track = tracks[seat.seat_id] = Track(seat.seat_id, key)
                    track.extend(
                        at(seen, index),
                        None if actions is None else actions[index],
                        rewards[index],
                        at(outputs, index) if outputs else outputs,
                        num_acted,
                    )
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

    def cut(self, waiting: Collection[str] = ()) -> Chunk | None:
        """Returns what was recorded since the last cut, None if nothing was; recording goes on.

        Args:
            waiting: seats of which the last block waits for its actions.
        """
        if not self._versions:
            for seat_id in waiting:  # whose observations come once more
                self.tracks[seat_id].go_on(self._lookback, is_waiting=True)
            return None
        chunk = self._chunk()
        self.tracks = {seat_id: one for seat_id, one in self.tracks.items() if not one.is_done}
        for seat_id, track in self.tracks.items():
            track.go_on(self._lookback, is_waiting=seat_id in waiting)
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
