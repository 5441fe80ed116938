"""Replay of whole episodes of a team, for networks that must see an episode from its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from muxrl.servers.agents.teams import ACTION_MASK, ALIVE
from muxrl.servers.algorithms.qmix.priorities import Priorities, PrioritySettings
from muxrl.servers.algorithms.recorded_rows import recorded_rows
from muxrl.servers.algorithms.team_replay.replay import TeamReplay

# One byte for each number: with many actions the mask would take most of the memory.
BINARY_KEYS = frozenset({ACTION_MASK, ALIVE})


@dataclass(frozen=True)
class EpisodeBatch:
    """B episodes, padded with zeros to T, the length of the longest of them.

    Attributes:
        obs: every key of the team's observation, ``[B, T + 1, ...]`` float32.
        actions: ``[B, T, n]`` int64.
        rewards: ``[B, T]`` float32; ``rewards[b, t]`` follows ``actions[b, t]``.
        terminated: ``[B, T]`` float32, 1 at the last step of a terminated (not truncated) episode.
        mask: ``[B, T]`` float32, 1 where there is data (PyMARL's ``filled``).
        rows: where the episodes are in the replay, ``[B]`` int64; None if drawn uniformly.
        weights: of the episodes in the loss, ``[B]`` float32; None: all count alike.
    """

    obs: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    mask: np.ndarray
    rows: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def num_steps(self) -> int:
        """Env steps, without the padding."""
        return int(self.mask.sum())


class EpisodeReplay(TeamReplay):
    """The last `capacity` episodes of one module, in numpy arrays ``[capacity, T_max, ...]``.

    T_max grows with the longest episode seen. Memory is taken as rows are first written (about
    ``capacity x mean length x bytes of a step``; rows of short episodes stay partly untouched).

    An episode that comes in chunks is stored as so many episodes: each is bootstrapped from its
    last observation, and a GRU starts from zero in the middle of the episode. Ask env runners for
    ``batch_mode="complete_episodes"`` to avoid that.

    Args:
        capacity: in episodes; the oldest is replaced first.
        seed: of the sampling.
        by_priority: how episodes are drawn by priority; None: uniformly.
    """

    unit = "episodes"

    def __init__(
        self,
        capacity: int,
        seed: int | None = None,
        by_priority: PrioritySettings | None = None,
    ) -> None:
        super().__init__(capacity, seed)
        self._priorities = Priorities(capacity, by_priority) if by_priority else None
        self._length = 0  # T_max
        self._lengths = np.zeros(capacity, np.int64)
        self._obs: dict[str, np.ndarray] = {}
        self._actions = np.zeros((capacity, 0, 0), np.int64)
        self._rewards = np.zeros((capacity, 0), np.float32)
        self._terminated = np.zeros(capacity, bool)

    @property
    def num_bytes(self) -> int:
        """Size of what is stored, without what is there for longer episodes."""
        steps = int(self._lengths.sum())
        per_row: list[np.ndarray] = [self._actions, self._rewards, *self._obs.values()]
        return sum(
            (steps + self._num_stored) * int(np.prod(rows.shape[2:])) * rows.itemsize
            for rows in per_row
        )

    def get_state(self) -> dict[str, Any]:
        """Returns all that is stored; arrays are ``[steps, ...]``."""
        lengths = self._lengths[: self._num_stored]
        priorities = {}
        if self._priorities is not None:
            priorities["priorities"] = self._priorities.get_state(self._num_stored)
        return {
            **super().get_state(),
            **priorities,
            "lengths": lengths,
            "terminated": self._terminated[: self._num_stored],
            "obs": {key: _packed(rows, lengths + 1) for key, rows in self._obs.items()},
            "actions": _packed(self._actions, lengths),
            "rewards": _packed(self._rewards, lengths),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        lengths = state["lengths"]
        self._set_place(len(lengths), state)
        self._lengths[: len(lengths)] = lengths
        if self._priorities is not None:
            self._priorities.set_state(len(lengths), state.get("priorities"))
        if not len(lengths):
            return
        self._grow(int(lengths.max()), state["obs"], state["actions"])
        self._terminated[: len(lengths)] = state["terminated"]
        for key, rows in state["obs"].items():
            self._obs[key][: len(lengths)][_filled(self._obs[key], lengths + 1)] = rows
        self._actions[: len(lengths)][_filled(self._actions, lengths)] = state["actions"]
        self._rewards[: len(lengths)][_filled(self._rewards, lengths)] = state["rewards"]

    def add(self, episode: SingleAgentEpisode) -> int:
        length = len(episode)
        if length == 0:
            return 0
        obs = recorded_rows(episode.observations)
        actions = recorded_rows(episode.actions)
        if length > self._length:
            self._grow(length, obs, actions)
        row = self._next
        old_length = int(self._lengths[row])
        for key, store in self._obs.items():
            store[row, : length + 1] = obs[key]
            store[row, length + 1 : old_length + 1] = 0
        self._actions[row, :length] = actions
        self._actions[row, length:old_length] = 0
        self._rewards[row, :length] = recorded_rows(episode.rewards)
        self._rewards[row, length:old_length] = 0
        self._terminated[row] = episode.is_terminated
        self._lengths[row] = length
        if self._priorities is not None:
            self._priorities.add(row)
        self._advance(1)
        return 1

    def sample(self, num: int) -> EpisodeBatch:
        """Draws so many episodes, or as many as are stored if they are fewer.

        Uniformly without replacement, or by priority; see `Priorities.draw`.
        """
        self._check_holds_any()
        num_episodes = min(num, self._num_stored)
        weights = None
        if self._priorities is None:
            rows = self._rng.choice(self._num_stored, num_episodes, replace=False, shuffle=False)
        else:
            rows, weights = self._priorities.draw(self._num_stored, num_episodes, self._rng)
        lengths = self._lengths[rows]
        longest = int(lengths.max())
        steps = np.arange(longest)
        return EpisodeBatch(
            obs={
                key: store[rows, : longest + 1].astype(np.float32, copy=False)
                for key, store in self._obs.items()
            },
            actions=self._actions[rows, :longest],
            rewards=self._rewards[rows, :longest],
            terminated=((steps == lengths[:, None] - 1) & self._terminated[rows, None]).astype(
                np.float32
            ),
            mask=(steps < lengths[:, None]).astype(np.float32),
            rows=None if weights is None else rows,
            weights=weights,
        )

    def update_priorities(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets the priorities of episodes of the last `sample`; see `Priorities.update`."""
        assert self._priorities is not None, "episodes are drawn uniformly"
        self._priorities.update(rows, values)

    def _grow(self, length: int, obs: dict[str, np.ndarray], actions: np.ndarray) -> None:
        # By half at least, so that slowly growing episodes do not copy everything each time.
        length = max(length, self._length + self._length // 2)
        if not self._obs:
            for key, value in obs.items():
                dtype = np.bool_ if key in BINARY_KEYS else np.float32
                self._obs[key] = np.zeros((self._capacity, 0, *value.shape[1:]), dtype)
            self._actions = np.zeros((self._capacity, 0, *actions.shape[1:]), np.int64)
        self._obs = {key: self._longer(store, length + 1) for key, store in self._obs.items()}
        self._actions = self._longer(self._actions, length)
        self._rewards = self._longer(self._rewards, length)
        self._length = length

    def _longer(self, store: np.ndarray, length: int) -> np.ndarray:
        longer = np.zeros((self._capacity, length, *store.shape[2:]), store.dtype)
        longer[: self._num_stored, : store.shape[1]] = store[: self._num_stored]
        return longer


def _filled(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns which of ``[capacity, T]`` there is data in, for the first episodes."""
    return np.arange(rows.shape[1]) < lengths[:, None]


def _packed(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return rows[: len(lengths)][_filled(rows, lengths)]
