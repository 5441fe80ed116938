"""RLlib's learner, which leaves out updates that would spoil it; see `skipped_updates`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from torch import Tensor

from muxrl.servers.algorithms.recorded_rows import recorded_rows
from muxrl.servers.episodes.warnings import Warnings
from muxrl.servers.training.skipped_updates import (
    MAX_GRADIENT,
    MAX_LOSS,
    MAX_SKIPPED,
    NUM_SKIPPED_UPDATES,
    SkippedUpdates,
    cause_of,
    largest_of,
    size_of,
)


class SoundUpdates(TorchLearner):
    """A mixin that comes before RLlib's learner: what is not sound reaches no optimizer.

    A module whose loss or gradient is not finite, or beyond `MAX_LOSS` or `MAX_GRADIENT`, is left
    out of that gradient step; the others are not. A module without data has no gradients: it is
    neither updated nor judged. Metrics of each module: ``num_skipped_updates``, from the first on.

    Attributes:
        max_skipped_in_a_row: calls of `update`; with one more the learner has diverged.
        skipped: counts them; its warnings are nobody's until a server's are set.
    """

    max_skipped_in_a_row: ClassVar[int] = MAX_SKIPPED

    def build(self) -> None:
        self.skipped = SkippedUpdates(self.max_skipped_in_a_row, Warnings())
        self._judged: dict[str, Tensor] = {}
        self._learns_from: TrainingData | None = None
        super().build()

    def compute_losses(self, *, fwd_out: Any, batch: Any) -> dict[str, Any]:
        losses: dict[str, Any] = super().compute_losses(fwd_out=fwd_out, batch=batch)
        self._judged = {module_id: loss.detach().sum() for module_id, loss in losses.items()}
        return losses

    def postprocess_gradients(self, gradients_dict: dict[Any, Any]) -> dict[Any, Any]:
        """Drops what is not sound before it is clipped, which would hide it.

        Raises:
            LearnerDiverged: nothing else has come for too long.
        """
        refs = {
            module_id: [
                ref
                for _, optimizer in self.get_optimizers_for_module(module_id)
                for ref in self._optimizer_parameters[optimizer]
                if gradients_dict.get(ref) is not None
            ]
            for module_id in self._judged
        }
        gradients = [gradients_dict[ref] for of_module in refs.values() for ref in of_module]
        if gradients:
            # All numbers at once: one wait for the device.
            norms = torch._foreach_norm(gradients)
            numbers = iter(torch.stack([*self._judged.values(), *norms]).cpu().tolist())
            losses = {module_id: next(numbers) for module_id in refs}
            for module_id, of_module in refs.items():
                norms_of_module = [next(numbers) for _ in of_module]
                if not self.is_sound(module_id, losses[module_id], norms_of_module):
                    gradients_dict = {**gradients_dict, **dict.fromkeys(of_module)}
        processed: dict[Any, Any] = super().postprocess_gradients(gradients_dict)
        return processed

    def is_sound(self, module_id: str, loss: float, norms: Sequence[float]) -> bool:
        """Returns whether an update may be made, and counts it if not.

        Args:
            module_id: of what is updated.
            loss: the sum of its losses.
            norms: of its gradients.

        Raises:
            LearnerDiverged: nothing else has come for too long.
        """
        norm = max(norms, key=size_of, default=0.0)
        if abs(loss) <= MAX_LOSS and norm <= MAX_GRADIENT:
            self.skipped.end_row(module_id)
            return True
        self.metrics.log_value((module_id, NUM_SKIPPED_UPDATES), 1, reduce="lifetime_sum")

        def why() -> str:
            return (
                f"its loss is {loss:.3g} and its gradient {norm:.3g}, beyond {MAX_LOSS:.0e} or "
                f"{MAX_GRADIENT:.0e} or not finite; {cause_of(self._largest(module_id))}"
            )

        self.skipped.add(module_id, self._weights_seq_no, why)  # epochs are of one batch
        return False

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any, module_gradients_dict: dict[Any, Any]
    ) -> dict[Any, Any]:
        if not module_gradients_dict:  # it has no part in this update, and no norm to log
            return {}
        processed: dict[Any, Any] = super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )
        return processed

    def apply_gradients(self, gradients_dict: dict[Any, Any]) -> None:
        """RLlib's, but a parameter without a gradient keeps none from the update before.

        RLlib also looks at every gradient twice for what is not finite.
        """
        for ref, parameter in self._params.items():
            parameter.grad = gradients_dict.get(ref)
        if self._grad_scalers is not None or self._lr_scheduler_classes is not None:
            present = {ref: g for ref, g in gradients_dict.items() if g is not None}
            super().apply_gradients(present)
            return
        for module_id, optimizer_names in self._module_optimizers.items():
            for name in optimizer_names:
                self.get_optimizer(module_id, name).step()

    def _make_batch_if_necessary(self, training_data: TrainingData) -> Any:
        self._learns_from = training_data
        return super()._make_batch_if_necessary(training_data)

    def _largest(self, module_id: str) -> Iterator[tuple[float, str]]:
        """Yields the largest numbers that a module learned from, with what each is."""
        assert self._learns_from is not None
        data = self._learns_from
        for episode in data.episodes or ():
            is_of_many = isinstance(episode, MultiAgentEpisode)
            for one in episode.agent_episodes.values() if is_of_many else (episode,):
                if one.module_id == module_id:
                    whose = f" of agent {one.agent_id!r} in episode {one.multi_agent_episode_id}"
                    for name, rows in (("reward", one.rewards), ("observation", one.observations)):
                        yield from largest_of(recorded_rows(rows), f"the {name}{whose}")
        if data.batch is not None:
            columns = data.batch.policy_batches.get(module_id, {})
            yield from largest_of(columns.get(Columns.REWARDS), "the reward")
            yield from largest_of(columns.get(Columns.OBS), "the observation")
