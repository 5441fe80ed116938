"""The base class of trainers with a replay: stores steps, and counts the updates that are due."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from muxrl.servers.algorithms.replay.replay import ROWS, Replay
from muxrl.servers.algorithms.torch_trainer import TorchTrainer
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import PolicySpec

NUM_UPDATES = "num_updates"


class ReplayTrainer(TorchTrainer):
    """Stores each batch in a replay, then makes the updates that are due for it.

    Attributes:
        replay: of this policy.
        num_updates: number of updates so far.
    """

    updates_by_steps = True
    saved = {
        "num_updates": "num_updates",
        "due": "_due",
        "num_env_steps": "_num_env_steps",
        "metrics": "_metrics",
    }

    def __init__(self, policy: PolicySpec, settings: Any) -> None:
        super().__init__(policy, settings)
        self.replay = self.make_replay()
        self.num_updates = 0
        self._due = 0.0
        self._num_env_steps = 0
        """Env steps at the last batch."""
        self._metrics: dict[str, float] = {}
        """By name: each metric's value in the last update that had it."""

    @property
    def batch_size(self) -> int:
        """Entries of the replay that an update learns from."""
        return int(self.settings.batch_size)

    @abstractmethod
    def make_replay(self) -> Replay:
        """Returns an empty replay."""

    @abstractmethod
    def updates_for(self, stored: Sequence[Trajectory], num_new: int, num_env_steps: int) -> float:
        """Returns the number of updates that a batch makes due, which may be a fraction.

        Args:
            stored: trajectories of the batch.
            num_new: number of entries that they made in the replay.
            num_env_steps: env steps of the batch.
        """

    @abstractmethod
    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        """Makes one update.

        Args:
            batch: from `Replay.sample`, in tensors on the device.

        Returns:
            Metrics by name: numbers, scalar tensors, or functions that return one, which are called
            for the last update only; and the new priorities of the entries ``[B]``, None if they
            are drawn uniformly.
        """

    def draw(self) -> dict[str, Any]:
        """Draws a batch from the replay, arrays by name."""
        return self.replay.sample(self.batch_size)

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        stored = [as_stored(one) for one in trajectories]
        num_new, num_env_steps = self.replay.add(*stored), self.env_steps - self._num_env_steps
        self._num_env_steps = self.env_steps
        self._due += self.updates_for(stored, num_new, num_env_steps)
        # 1e-9, because ten times 0.1 adds up to a little less than 1.
        num = int(self._due + 1e-9)
        self._due -= num
        return self.make_updates(num)

    def make_updates(self, num: int) -> dict[str, float]:
        """Makes `num` updates from the replay; returns metrics as `learn` does."""
        metrics: dict[str, Any] = {}
        for i in range(num):
            self.begin_learning()
            drawn = self.draw()
            self.num_updates += 1
            measured, priorities = self.update_on(self.on_device(drawn))
            metrics |= measured
            if ROWS in drawn and priorities is not None:
                self.replay.update_priorities(drawn[ROWS], priorities.cpu().numpy())
            self.note_progress((i + 1) / num)
        numbers = {name: float(v() if callable(v) else v) for name, v in metrics.items()}
        self._metrics = {**self._metrics, **numbers}
        return {
            **self._metrics,
            NUM_UPDATES: self.num_updates,
            f"num_{self.replay.unit}_stored": len(self.replay),
        }

    # --- state --------------------------------------------------------------------------

    def replay_bytes(self) -> int:
        """Returns the bytes of the stored entries."""
        return self.replay.num_bytes

    def replay_state(self) -> dict[str, Any]:
        """Returns the replay's state, as plain values and arrays."""
        return self.replay.get_state()

    def load_replay(self, state: Mapping[str, Any]) -> None:
        """Loads what `replay_state` returned, into an empty replay."""
        self.replay.set_state(state)

    def refill_replay(self, env_steps: int) -> None:
        """Makes learning wait, as the replay is empty after a resumption at `env_steps`."""


def as_stored(one: Trajectory) -> Trajectory:
    """Returns a trajectory with all parts of its observations in a dict, if there are several."""
    parts = one.parts
    return one if len(parts) == 1 else replace(one, observations=parts)
