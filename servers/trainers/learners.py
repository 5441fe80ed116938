"""Makes a server's trainers learn, and undoes updates that have made their numbers unsound."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.failures import Calls, TrainerFailed
from muxrl.servers.trainers.interface import Trainer
from muxrl.servers.trainers.sound_state import SoundState
from muxrl.servers.training.policies import LearnerDiverged
from muxrl.servers.training.skipped_updates import (
    NUM_SKIPPED_UPDATES,
    Number,
    SkippedUpdates,
    cause_of,
    largest_of,
)
from muxrl.servers.training.thread import LOSS


class Learners(dict[str, Any]):
    """The trainers that learn, by policy id.

    Args:
        trainers: by policy id.
        call: calls methods of the trainers.
    """

    def __init__(self, trainers: Mapping[str, Trainer], call: Calls) -> None:
        super().__init__(trainers)
        self._call = call
        first = next(iter(self.values()))
        self.skipped = SkippedUpdates(getattr(first, "learns_from", ""))
        for one in self.values():
            if hasattr(one, "skipped"):
                one.skipped = self.skipped
        self.largest_seen: Callable[[], Iterable[Number]] = tuple
        """Returns the largest numbers that were ever learned from, with what each of them is."""
        self._sound: dict[str, SoundState] = {}  # filled at the first update

    def forget_sound(self) -> None:
        """Takes the trainers' present states for sound, after they have loaded others."""
        self._sound = {}

    def learn_all(
        self, played: Mapping[str, Sequence[Trajectory]], env_steps: int
    ) -> dict[str, dict[str, float]]:
        """Makes the trainers learn from a batch; returns their metrics by policy id.

        Args:
            played: the batch's pieces of episodes, by policy id.
            env_steps: env steps sampled so far, including this batch.

        Raises:
            TrainerFailed, LearnerDiverged: see `learn`.
        """
        first: Any = next(iter(self.values()))
        if not hasattr(first, "learn_together"):
            always = self if getattr(first, "learns_when_absent", False) else ()
            both = dict.fromkeys([*played, *always])
            return {p: self.learn(p, played.get(p, ()), env_steps) for p in both}
        for trainer in self.values():
            trainer.env_steps = env_steps
        policy_id = next(iter(played), "")
        found = self._call("learn_together", policy_id, lambda: first.learn_together(self, played))
        return {
            policy_id: self._counted(policy_id, self._metrics(policy_id, own))
            for policy_id, own in found.items()
        }

    def learn(
        self, policy_id: str, trajectories: Sequence[Trajectory], env_steps: int
    ) -> dict[str, float]:
        """Makes a policy's trainer learn; returns its metrics.

        If its state is unsound after that, it goes back to its last sound state.

        Raises:
            TrainerFailed: the trainer raised, or returned invalid metrics.
            LearnerDiverged: too many updates in a row were skipped.
        """
        trainer: Any = self[policy_id]
        if hasattr(trainer, "env_steps"):
            trainer.env_steps = env_steps
        if hasattr(trainer, "skipped"):
            found = self._call("learn", policy_id, lambda: trainer.learn(trajectories))
            return self._counted(policy_id, self._metrics(policy_id, found))
        if policy_id not in self._sound:
            self._sound[policy_id] = self._call(
                "state", policy_id, lambda: SoundState(trainer, self.skipped.most)
            )
        sound = self._sound[policy_id]
        metrics: dict[str, float] = {}
        failure: TrainerFailed | None = None
        try:
            metrics = self._metrics(
                policy_id, self._call("learn", policy_id, lambda: trainer.learn(trajectories))
            )
        except TrainerFailed as error:  # perhaps since its state is unsound
            failure = error
        is_due = sound.is_due or failure is not None
        if self._undo_if_corrupt(policy_id, trajectories, failure, is_all=is_due):
            metrics = {}
        elif failure is not None:
            raise failure
        else:
            self.skipped.end_row(policy_id)
            if is_due:
                self._call("state", policy_id, sound.keep)
        return self._counted(policy_id, metrics)

    def _counted(self, policy_id: str, metrics: dict[str, float]) -> dict[str, float]:
        num = self.skipped.num[policy_id]
        return {**metrics, NUM_SKIPPED_UPDATES: num} if num else metrics

    def undo_if_corrupt(self) -> None:
        """Makes trainers with unsound states go back to their last sound ones, before a save.

        Raises:
            TrainerFailed: a trainer cannot go back.
        """
        for policy_id in self._sound:
            with contextlib.suppress(LearnerDiverged):  # raised again by the next update
                self._undo_if_corrupt(policy_id, (), None, is_all=True)

    def _undo_if_corrupt(
        self,
        policy_id: str,
        trajectories: Sequence[Trajectory],
        failure: TrainerFailed | None,
        *,
        is_all: bool,
    ) -> bool:
        """Undoes the last update if the state is unsound; returns whether it was undone.

        Raises:
            LearnerDiverged: too many updates in a row were undone.
        """
        sound = self._sound[policy_id]
        corrupt: str = self._call("state", policy_id, partial(sound.find_corrupt, is_all=is_all))
        if not corrupt:
            return False
        self._call("load", policy_id, sound.go_back)

        def why() -> str:
            found = (one for fragment in trajectories for one in _largest_of(fragment))
            reason = "" if failure is None else f"; {failure}"
            return f"after it {corrupt}{reason}; {cause_of(found, self.largest_seen())}"

        self.skipped.add(policy_id, self.skipped.num[policy_id], why)
        return True

    def _metrics(self, policy_id: str, metrics: Any) -> dict[str, float]:
        expected, got = "metrics by name or None", metrics
        if metrics is None:
            return {}
        if isinstance(metrics, Mapping):
            if LOSS not in metrics:
                return dict(metrics)
            expected, got = f"a number as {LOSS!r}", metrics[LOSS]
            with contextlib.suppress(TypeError, ValueError):
                return {**metrics, LOSS: float(got)}
        raise self._call.failure(
            "learn", policy_id, f"expected {expected}, got {type(got).__name__}"
        )


def _largest_of(fragment: Trajectory) -> Iterator[Number]:
    whose = f"of {fragment.seat_id!r} in episode {fragment.episode_id}"
    yield from largest_of(fragment.rewards, f"the reward {whose}")
    yield from largest_of(fragment.observations, f"the observation {whose}")
