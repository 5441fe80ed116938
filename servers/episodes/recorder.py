"""Records one episode, seat by seat.

Each seat has a track, which becomes a `Trajectory` when a chunk is delivered.

::

    seat a   o ─a→ o ─a→ o ─a→ o            an observation for every action
    seat b   o ─b→ ·     · ──→ o ─b→        acts now and then: its rewards add up until it observes
             begin  add   cut   add         b's action is open at the cut and goes on behind it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muxrl.servers.agents.seats import Seat, SeatAction
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.trajectories import Chunk, Trajectory


class _Track:
    """The record of one seat, in lists, which cost the least a step."""

    __slots__ = ("actions", "extra_outputs", "is_terminated", "is_truncated", "num_before",
                 "num_lookback", "observations", "open_action", "reward",
                 "rewards")  # fmt: skip

    def __init__(self, observation: Any) -> None:
        self.observations = [observation]
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.extra_outputs: list[Mapping[str, Any]] = []
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
        self.observations.append(observation)
        self.actions.append(action.action)
        self.rewards.append(self.reward)
        self.extra_outputs.append(action.extra_outputs)
        self.open_action = None

    def after_cut(self, lookback: int) -> None:
        """Goes on behind what has been handed over."""
        self.num_before += self.num_steps
        kept = min(lookback, len(self.actions))
        first = len(self.actions) - kept
        self.observations = self.observations[first:]
        self.actions, self.rewards = self.actions[first:], self.rewards[first:]
        self.extra_outputs = self.extra_outputs[first:]
        self.num_lookback = kept


class _ScaledTrack(_Track):
    """With rewards that are scaled."""

    __slots__ = ("_discounted", "_scale")

    def __init__(self, observation: Any, scale: RewardScale) -> None:
        super().__init__(observation)
        self._scale = scale
        self._discounted = 0.0

    def observe(self, observation: Any) -> None:
        self.reward, self._discounted = self._scale.scale(self.reward, self._discounted)
        super().observe(observation)


class Recorder:
    """Records transitions, and cuts chunks for the learner.

    Args:
        episode_id: unique.
        seats: who may appear, by seat id.
        lookback: steps a chunk keeps of the one before it; 1 for recurrent modules.
        reward_scales: by policy; None: rewards are recorded as they come.
    """

    def __init__(
        self,
        episode_id: str,
        seats: Mapping[str, Seat],
        lookback: int,
        reward_scales: Mapping[str, RewardScale] | None = None,
    ) -> None:
        self._episode_id = episode_id
        self._seats = seats
        self._lookback = lookback
        self._reward_scales = reward_scales
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
            self._observe(seat_id, observation)
        if terminated or truncated:
            for seat_id in sorted(terminated | truncated):  # in one order: they may share a scale
                track = tracks.get(seat_id)
                if track is not None:
                    if track.open_action is not None:  # terminated: not bootstrapped from
                        track.observe(track.observations[-1])
                    track.is_terminated = seat_id in terminated
                    track.is_truncated = seat_id in truncated
        if is_last:
            self._is_terminated, self._is_truncated = not truncated, bool(truncated)
        self._weights_seq_nos.append(weights_seq_no)

    def begin_again(self, observations: Mapping[str, Any]) -> None:
        """Records the first observations of seats that come back after their end."""
        for seat_id, observation in observations.items():
            before = self._tracks.pop(seat_id, None)
            if before is not None and before.num_steps:
                self._ended.append((seat_id, self._key(seat_id), before))
            self._lives[seat_id] = self._lives.get(seat_id, 1) + 1
            self._observe(seat_id, observation)

    def _key(self, seat_id: str) -> str:
        """What a seat's life is called in the episode: replays join its parts by that."""
        life = self._lives.get(seat_id)
        return seat_id if life is None else f"{seat_id}~{life}"

    def _observe(self, seat_id: str, observation: Any) -> None:
        """Starts a seat's track, or completes the transition of its open action."""
        track = self._tracks.get(seat_id)
        if track is None:
            scales = self._reward_scales
            self._tracks[seat_id] = (
                _ScaledTrack(observation, scales[self._seats[seat_id].policy_id])
                if scales
                else _Track(observation)
            )
        else:
            track.observe(observation)

    def last_observation(self, seat_id: str) -> Any:
        """Returns what a seat observed last; None if it never did."""
        track = self._tracks.get(seat_id)
        return None if track is None else track.observations[-1]

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
        """Returns what a track holds; the lists are handed over, not copied."""
        outputs = track.extra_outputs
        return Trajectory(
            id=f"{self._episode_id}_{key}",
            episode_id=self._episode_id,
            seat_id=seat_id,
            policy_id=self._seats[seat_id].policy_id,
            observations=track.observations,
            actions=track.actions,
            rewards=track.rewards,
            outputs={name: [step[name] for step in outputs] for name in outputs[0]},
            t=track.num_before,
            num_lookback=track.num_lookback,
            is_terminated=track.is_terminated,
            is_truncated=track.is_truncated,
        )
