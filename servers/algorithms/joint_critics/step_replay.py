"""Replay of a team's steps in numpy arrays, drawn uniformly.

RLlib's buffers keep episodes and make a Python object of each step that is drawn, which for the
256 steps of an update takes longer than the update. Here a draw is an indexing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from muxrl.servers.algorithms.recorded_rows import recorded_rows
from muxrl.servers.algorithms.team_replay.replay import TeamReplay


@dataclass(frozen=True)
class StepBatch:
    """B steps.

    Attributes:
        obs: every key of the team's observation, ``[B, ...]`` float32.
        actions: ``[B, n, action_dim]`` float32.
        rewards: ``[B]`` float32, after `actions`.
        terminated: ``[B]`` float32, 1 where nothing follows; 0 where the episode was truncated.
        next_obs: as `obs`, after `actions`; a truncated episode's final one, too.
    """

    obs: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    next_obs: dict[str, np.ndarray]

    @property
    def num_steps(self) -> int:
        """B."""
        return len(self.rewards)


class StepReplay(TeamReplay):
    """The last `capacity` steps of one module. Memory is taken as rows are first written.

    Args:
        capacity: in steps of a team; the oldest is replaced first.
        seed: of the sampling.
    """

    unit = "steps"

    def __init__(self, capacity: int, seed: int | None = None) -> None:
        super().__init__(capacity, seed)
        self._columns: dict[str, np.ndarray] = {}

    @property
    def num_bytes(self) -> int:
        return sum(column[: self._num_stored].nbytes for column in self._columns.values())

    def add(self, episode: SingleAgentEpisode) -> int:
        length = len(episode)
        if length == 0:
            return 0
        terminated = np.zeros(length, np.float32)
        terminated[-1] = episode.is_terminated
        given = {
            "actions": recorded_rows(episode.actions),
            "rewards": recorded_rows(episode.rewards),
            "terminated": terminated,
        }
        for key, value in recorded_rows(episode.observations).items():
            given[f"obs.{key}"] = value[:-1]
            given[f"next_obs.{key}"] = value[1:]
        if not self._columns:
            self._columns = {
                name: np.zeros((self._capacity, *value.shape[1:]), np.float32)
                for name, value in given.items()
            }
        # Of more steps than there is room for, the newest.
        first = max(0, length - self._capacity)
        rows = (self._next + np.arange(first, length)) % self._capacity
        for name, column in self._columns.items():
            column[rows] = given[name][first:]
        self._advance(length)
        return length

    def sample(self, num: int) -> StepBatch:
        """Draws so many steps uniformly, with replacement."""
        self._check_holds_any()
        rows = self._rng.integers(self._num_stored, size=num)
        drawn = {name: column[rows] for name, column in self._columns.items()}

        def part(prefix: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(prefix): v for k, v in drawn.items() if k.startswith(prefix)}

        return StepBatch(
            part("obs."),
            drawn["actions"],
            drawn["rewards"],
            drawn["terminated"],
            part("next_obs."),
        )

    def get_state(self) -> dict[str, Any]:
        return {
            **super().get_state(),
            "num_stored": self._num_stored,
            "columns": {name: c[: self._num_stored].copy() for name, c in self._columns.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        num_stored = int(state["num_stored"])
        self._set_place(num_stored, state)
        for name, rows in state["columns"].items():
            self._columns[name] = np.zeros((self._capacity, *rows.shape[1:]), np.float32)
            self._columns[name][:num_stored] = rows
