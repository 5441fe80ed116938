"""Learners of RLlib's IMPALA and APPO that update in the calling thread.

RLlib updates in a thread of its own, so that sampling need not wait. A server samples meanwhile
anyway; the thread would only cause weights that change while the server acts, and checkpoints in
the middle of an update.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.training_data import TrainingData


class _InPlace:
    """Mixin for a subclass of RLlib's ``IMPALALearner``, to stand before it among the bases."""

    def build(self: Any) -> None:
        super().build()  # type: ignore[misc]
        self.shutdown()  # stops the thread, before it has got any batch
        self._learner_thread = None  # else RLlib stops it again at exit, which raises in APPO

    def update(
        self: Any, training_data: TrainingData, *, timesteps: dict[str, Any], **kwargs: Any
    ) -> Any:
        kwargs.pop("return_state", None)
        training_data.solve_refs()
        batch = self._make_batch_if_necessary(training_data=training_data)
        is_buffered = getattr(self.config, "use_circular_buffer", False)
        num = self.config.circular_buffer_iterations_per_batch if is_buffered else 1
        results = {}
        for i in range(num):
            results = Learner.update(
                self,
                training_data=TrainingData(batch=batch),
                timesteps=timesteps,
                _no_metrics_reduce=i < num - 1,
                **kwargs,
            )
        return results


def in_place(learner: type[Learner]) -> type[Learner]:
    """Returns a subclass of a learner that has no thread of its own."""
    return type(learner.__name__, (_InPlace, learner), {"__module__": learner.__module__})
