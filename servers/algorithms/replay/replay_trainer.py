"""What trainers that learn from a replay share: what is stored, and which updates are due."""

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
    """Stores what was played once, then makes the updates that are due for it.

    Attributes:
        replay: of this policy.
        num_updates: so far.
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
        """At the last batch."""
        self._metrics: dict[str, float] = {}
        """Each of the last update that had it, perhaps of an earlier batch."""

    @abstractmethod
    def make_replay(self) -> Replay:
        """Returns an empty replay."""

    @abstractmethod
    def updates_for(self, stored: Sequence[Trajectory], num_new: int, num_env_steps: int) -> float:
        """Returns how many updates what came brings; perhaps a fraction.

        Args:
            stored: it.
            num_new: those that it made.
            num_env_steps: env steps in it.
        """

    @abstractmethod
    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        """Makes one update.

        Args:
            batch: of `Replay.sample`, tensors on the device.

        Returns:
            Metrics by name, numbers, scalars, or functions that return them, which are asked of
            the last update alone; and the priorities of the entries ``[B]``, None where they are
            drawn uniformly.
        """

    def draw(self) -> dict[str, Any]:
        """Returns a batch, arrays by name."""
        return self.replay.sample(self.settings.batch_size)

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        stored = [as_stored(one) for one in trajectories]
        num_new, num_env_steps = self.replay.add(*stored), self.env_steps - self._num_env_steps
        self._num_env_steps = self.env_steps
        self._due += self.updates_for(stored, num_new, num_env_steps)
        # A little below 1, because ten times 0.1 is not quite 1.
        num = int(self._due + 1e-9)
        self._due -= num
        return self.make_updates(num)

    def make_updates(self, num: int) -> dict[str, float]:
        """Makes so many updates on what is stored; returns metrics as `learn` does."""
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
        """Returns the size of what is stored."""
        return self.replay.num_bytes

    def replay_state(self) -> dict[str, Any]:
        """Returns what is stored, as plain values and arrays."""
        return self.replay.get_state()

    def load_replay(self, state: Mapping[str, Any]) -> None:
        """Continues, with nothing stored, with what `replay_state` returned."""
        self.replay.set_state(state)

    def refill_replay(self, env_steps: int) -> None:
        """Is told that the replay is empty after so many env steps."""


def as_stored(one: Trajectory) -> Trajectory:
    """Returns a trajectory whose observations are all their parts; an array if that is one."""
    parts = one.parts
    return one if len(parts) == 1 else replace(one, observations=parts)
