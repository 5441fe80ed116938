"""A learner of RLlib's IMPALA or APPO that updates when it is asked to.

RLlib leaves updates to a thread, so that sampling need not wait. A server samples meanwhile anyway;
weights that change while it acts, and a checkpoint with half an update, would be all that the
thread brings.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.training_data import TrainingData


class _InPlace:
    """Goes before a subclass of RLlib's ``IMPALALearner``."""

    def build(self: Any) -> None:
        super().build()  # type: ignore[misc]
        self.shutdown()  # the thread, before it has seen anything
        self._learner_thread = None  # at exit RLlib would stop it again, and APPO's then raises

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
    """Returns a learner's class without the thread."""
    return type(learner.__name__, (_InPlace, learner), {"__module__": learner.__module__})
