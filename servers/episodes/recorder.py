"""Records one episode, seat by seat.

Each seat has a track, which becomes a `Trajectory` when a chunk is delivered.

::

    seat a   o ─a→ o ─a→ o ─a→ o            an observation for every action
    seat b   o ─b→ ·     · ──→ o ─b→        acts now and then: its rewards add up until it observes
             begin  add   cut   add         b's action is open at the cut and goes on behind it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from muxrl.servers.agents.seats import Seat, SeatAction
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, concatenated, rows_of, stacked

_FEW = 4
"""Rows of an array that are kept one by one: pieces of many episodes are put together later."""


class _Column:
    """Rows one after another, in the form in which they came: alone, or many in an array."""

    __slots__ = ("_arrays", "_num_in_arrays", "rows")

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        """Those behind the arrays."""
        self._arrays: list[Any] = []
        self._num_in_arrays = 0

    def __len__(self) -> int:
        return self._num_in_arrays + len(self.rows)

    def extend(self, array: Any, num: int) -> None:
        """Adds rows in an array ``[num, ...]``, or in a dict of arrays."""
        if num <= _FEW and not self._arrays:
            self.rows += rows_of(array, slice(num))
            return
        if self.rows:
            self._arrays.append(stacked(self.rows))
            self._num_in_arrays += len(self.rows)
            self.rows = []
        self._arrays.append(array)
        self._num_in_arrays += num

    def all(self) -> Any:
        """Returns a list if all came alone, else one array, or a dict of them."""
        if not self._arrays:
            return self.rows
        return concatenated([*self._arrays, stacked(self.rows)] if self.rows else self._arrays)

    def last(self, num: int) -> list[Any]:
        """Returns the last rows, one by one."""
        if num <= len(self.rows) or not self._arrays:
            return self.rows[len(self.rows) - num :]
        return rows_of(self.all(), slice(len(self) - num, len(self)))


class _Track:
    """The record of one seat."""

    __slots__ = ("actions", "extra_outputs", "is_terminated", "is_truncated", "num_before",
                 "num_lookback", "observations", "open_action", "reward",
                 "rewards")  # fmt: skip

    def __init__(self, observation: Any) -> None:
        self.observations = _Column([observation])
        self.actions = _Column([])
        self.rewards = _Column([])
        self.extra_outputs = _Column([])
        self.is_terminated = False
        self.is_truncated = False
        self.num_before = 0
        """Transitions cut off already."""
        self.num_lookback = 0
        """How many at the front have been handed over, and are kept for recurrent modules."""
        self.open_action: SeatAction | None = None
        """The last action, until its next observation comes."""
        self.reward = 0.0
        """For that action, so far."""

    @property
    def is_done(self) -> bool:
        return self.is_terminated or self.is_truncated

    @property
    def num_steps(self) -> int:
        """Transitions since the last cut."""
        return len(self.actions) - self.num_lookback

    def observe(self, observation: Any) -> None:
        """Completes the transition of the open action."""
        action = self.open_action
        assert action is not None
        self.observations.rows.append(observation)
        self.actions.rows.append(action.action)
        self.rewards.rows.append(self.reward)
        self.extra_outputs.rows.append(action.extra_outputs)
        self.open_action = None

    def after_cut(self, lookback: int) -> None:
        """Goes on behind what has been handed over."""
        self.num_before += self.num_steps
        kept = min(lookback, len(self.actions))
        self.observations = _Column(self.observations.last(kept + 1))
        self.actions = _Column(self.actions.last(kept))
        self.rewards = _Column(self.rewards.last(kept))
        self.extra_outputs = _Column(self.extra_outputs.last(kept))
        self.num_lookback = kept


class SeatRows(NamedTuple):
    """Transitions of a seat one after another; arrays ``[T, ...]``, or dicts of them.

    An observation is the one that follows its action.
    """

    seat_id: str
    observations: Any
    actions: np.ndarray
    rewards: np.ndarray
    extra_outputs: Mapping[str, Any]


class Recorder:
    """Records transitions, and cuts chunks for the learner.

    Args:
        episode_id: unique.
        seats: who may appear, by seat id.
        lookback: steps a chunk keeps of the one before it; 1 for recurrent modules.
        reward_scales: by policy; none: rewards are recorded as they come.

    Attributes:
        discounted: of each seat whose rewards are scaled, their discounted sum.
    """

    def __init__(
        self,
        episode_id: str,
        seats: Mapping[str, Seat],
        lookback: int,
        reward_scales: Mapping[str, RewardScale] = MappingProxyType({}),
    ) -> None:
        self._episode_id = episode_id
        self._seats = seats
        self._lookback = lookback
        self._reward_scales = reward_scales
        self.discounted: dict[str, float] = {}
        self._tracks: dict[str, _Track] = {}
        self._lives: dict[str, int] = {}
        """By seat that has come back after its end, which of its lives this is; others have one."""
        self._ended: list[tuple[str, str, _Track]] = []
        """Seat, key and record of lives before, until the next cut."""
        self._num_cut_steps = 0
        self._is_terminated = False
        self._is_truncated = False
        self._weights_seq_nos: list[int] = []

    @property
    def num_uncut_steps(self) -> int:
        """Env steps recorded since the last cut."""
        return len(self._weights_seq_nos)

    def begin(self, observations: dict[str, Any]) -> None:
        """Records the observations of step 0."""
        for seat_id, observation in observations.items():
            self._observe(seat_id, observation)

    def add(
        self,
        *,
        acted: Mapping[str, SeatAction],
        observations: Mapping[str, Any],
        rewards: Mapping[str, float],
        terminated: set[str],
        truncated: set[str],
        is_last: bool,
        weights_seq_no: int,
        are_scaled: bool = False,
    ) -> None:
        """Records what followed from the actions of the step before; all is by seat id.

        Args:
            acted: the actions of that step.
            observations: those that are acted on next, and final ones.
            rewards: for the actions; those of a seat that has not acted yet are ignored.
            terminated: seats that have terminated.
            truncated: seats that were truncated; their values are bootstrapped.
            is_last: whether no seat can act any more.
            weights_seq_no: version of the weights that chose the actions.
            are_scaled: whether the rewards are scaled already.
        """
        tracks = self._tracks
        for seat_id, action in acted.items():
            acting = tracks[seat_id]
            acting.open_action, acting.reward = action, 0.0
        for seat_id, reward in rewards.items():
            track = tracks.get(seat_id)
            if track is not None and track.open_action is not None:
                track.reward += reward
        for seat_id, observation in observations.items():
            self._observe(seat_id, observation, is_scaled=are_scaled)
        if terminated or truncated:
            for seat_id in sorted(terminated | truncated):  # in one order: they may share a scale
                track = tracks.get(seat_id)
                if track is not None:
                    if track.open_action is not None:  # terminated: not bootstrapped from
                        self._observe(seat_id, track.observations.last(1)[0])
                    track.is_terminated = seat_id in terminated
                    track.is_truncated = seat_id in truncated
        if is_last:
            self._is_terminated, self._is_truncated = not truncated, bool(truncated)
        self._weights_seq_nos.append(weights_seq_no)

    def add_rows(self, seats: Iterable[SeatRows], weights_seq_nos: Sequence[int]) -> None:
        """Records transitions in which the same seats act at every step, and none ends.

        Args:
            seats: these, without open actions.
            weights_seq_nos: versions of the weights that chose the actions, by step.
        """
        num = len(weights_seq_nos)
        for one in seats:
            track = self._tracks[one.seat_id]
            track.observations.extend(one.observations, num)
            track.actions.extend(one.actions, num)
            track.rewards.extend(one.rewards, num)
            track.extra_outputs.extend(one.extra_outputs, num)
        self._weights_seq_nos.extend(weights_seq_nos)

    def begin_again(self, observations: Mapping[str, Any]) -> None:
        """Records the first observations of seats that come back after their end."""
        for seat_id, observation in observations.items():
            before = self._tracks.pop(seat_id, None)
            if before is not None and before.num_steps:
                self._ended.append((seat_id, self._key(seat_id), before))
            self._lives[seat_id] = self._lives.get(seat_id, 1) + 1
            self.discounted.pop(seat_id, None)
            self._observe(seat_id, observation)

    def _key(self, seat_id: str) -> str:
        """What a seat's life is called in the episode: replays join its parts by that."""
        life = self._lives.get(seat_id)
        return seat_id if life is None else f"{seat_id}~{life}"

    def _observe(self, seat_id: str, observation: Any, *, is_scaled: bool = False) -> None:
        """Starts a seat's track, or completes the transition of its open action."""
        track = self._tracks.get(seat_id)
        if track is None:
            self._tracks[seat_id] = _Track(observation)
            return
        if self._reward_scales and not is_scaled:
            scale = self._reward_scales[self._seats[seat_id].policy_id]
            before = self.discounted.get(seat_id, 0.0)
            track.reward, self.discounted[seat_id] = scale.scale(track.reward, before)
        track.observe(observation)

    def last_observation(self, seat_id: str) -> Any:
        """Returns what a seat observed last; None if it never did."""
        track = self._tracks.get(seat_id)
        return None if track is None else track.observations.last(1)[0]

    def cut(self) -> Chunk | None:
        """Returns what was recorded since the last cut, None if nothing was; recording goes on."""
        if not self._weights_seq_nos:
            return None
        chunk = self._chunk()
        self._tracks = {seat_id: t for seat_id, t in self._tracks.items() if not t.is_done}
        for track in self._tracks.values():
            track.after_cut(self._lookback)
        return chunk

    def finish(self, *, is_aborted: bool = False) -> Chunk | None:
        """Returns the rest; an aborted episode counts as truncated at its last full step."""
        if not self._weights_seq_nos:
            return None
        if is_aborted and not self._is_terminated and not self._is_truncated:
            self._is_truncated = True
            for track in self._tracks.values():
                if not track.is_done:
                    track.is_truncated = True
        return self._chunk()

    def _chunk(self) -> Chunk:
        found = [
            (seat_id, self._key(seat_id), track)
            for seat_id, track in self._tracks.items()
            if track.num_steps
        ]
        if self._ended:  # the lives of a seat one after another: RLlib batches them by seat
            order = list(self._seats)
            found = sorted([*self._ended, *found], key=lambda one: order.index(one[0]))
            self._ended = []
        chunk = Chunk(
            self._episode_id,
            self._num_cut_steps,
            [self._trajectory(*one) for one in found],
            self._weights_seq_nos,
            self._is_terminated,
            self._is_truncated,
        )
        self._num_cut_steps += chunk.num_env_steps
        self._weights_seq_nos = []
        return chunk

    def _trajectory(self, seat_id: str, key: str, track: _Track) -> Trajectory:
        """Returns what a track holds; its rows are handed over, not copied."""
        outputs = track.extra_outputs.all()
        if isinstance(outputs, list):
            outputs = {name: [step[name] for step in outputs] for name in outputs[0]}
        return Trajectory(
            id=f"{self._episode_id}_{key}",
            episode_id=self._episode_id,
            seat_id=seat_id,
            policy_id=self._seats[seat_id].policy_id,
            observations=track.observations.all(),
            actions=track.actions.all(),
            rewards=track.rewards.all(),
            outputs=outputs,
            t=track.num_before,
            num_lookback=track.num_lookback,
            is_terminated=track.is_terminated,
            is_truncated=track.is_truncated,
        )
