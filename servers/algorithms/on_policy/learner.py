"""A lean update: RLlib's loss and optimiser steps with less around them.

Simulations wait while an on-policy server learns, so every update pauses the whole experiment.
With small networks most of that pause is not arithmetic: RLlib builds the batch column by column,
slices minibatches, logs each of them and checks every gradient alone. `LeanUpdate` replaces those
parts and keeps the rest: losses, schedules and KL coefficient are RLlib's. Losses of this
project's own add up in `actor_critic_loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import tree
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY as VF_EXPLAINED_VAR,
)
from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.torch_utils import explained_variance
from torch import Tensor

from muxrl.servers.algorithms.fused_adam import FusedAdam
from muxrl.servers.algorithms.on_policy.episodes_to_batch import EpisodesToBatch
from muxrl.servers.algorithms.sound_updates import SoundUpdates
from muxrl.servers.episodes.trajectories import at


@dataclass(frozen=True)
class Minibatch:
    """What an update reads of a ``MultiAgentBatch``: columns by module id."""

    policy_batches: dict[str, dict[str, Any]]


def minibatches(
    batches: Mapping[str, Mapping[str, Any]],
    *,
    size: int | None,
    num_epochs: int,
    should_shuffle: bool,
    note_progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Minibatch]:
    """Goes over each module's columns `num_epochs` times, in minibatches of about the same size.

    An epoch of n transitions has ``ceil(n / size)`` minibatches whose sizes differ by one at most,
    and each transition is in one of them. Sequences of recurrent networks stay whole: there are no
    more minibatches than sequences, and it is their numbers of sequences that are alike. As in
    RLlib, a module with fewer transitions than another gets further epochs until that one is done.

    Args:
        batches: columns by module id, tensors whose first dimension is the transition, or the
            sequence where there is a ``LOSS_MASK``.
        size: largest number of transitions of a module in one minibatch; None: all of them.
        num_epochs: passes over the module that has most transitions.
        should_shuffle: whether each pass draws its minibatches at random.
        note_progress: told before each minibatch which share of all is done with it.
    """
    rows, num_parts = {}, dict.fromkeys(batches, 1)
    for module_id, batch in batches.items():
        mask = batch.get(Columns.LOSS_MASK)
        if mask is None:
            num = len(tree.flatten(batch)[0])
            rows[module_id] = torch.arange(num)
        else:  # without those that hold an episode's bootstrap value alone
            rows[module_id], num = mask.any(-1).nonzero().flatten(), int(mask.sum())
        if size is not None:
            num_parts[module_id] = max(1, min(len(rows[module_id]), -(-num // size)))

    def cycle(module_id: str) -> Iterator[dict[str, Any]]:
        batch, own = dict(batches[module_id]), rows[module_id]
        while True:
            if num_parts[module_id] == 1:
                yield batch
                continue
            order = own[torch.randperm(len(own))] if should_shuffle else own
            for part in order.tensor_split(num_parts[module_id]):
                yield at(batch, part)

    parts = {module_id: cycle(module_id) for module_id in batches}
    total = num_epochs * max(num_parts.values())
    for number in range(total):
        note_progress((number + 1) / total)
        yield Minibatch({module_id: next(mine) for module_id, mine in parts.items()})


class LeanUpdate(SoundUpdates):
    """A mixin that comes before ``PPOTorchLearner``.

    If any module of a learner has a state (LSTM), RLlib's own pipeline, which pads sequences,
    trains all of them.
    """

    is_lean = False
    """Whether the update is lean, which depends on the modules; known after `build`."""
    has_own_minibatches = False
    """Whether it goes over `minibatches`, as all do but those of a pipeline of the user's."""
    should_standardize_advantages = True
    """Whether the pipeline does it, lean or RLlib's."""
    note_progress: Callable[[float], None] = staticmethod(lambda share: None)
    """Told how far a lean update is, see `minibatches`; a server sets its feed's."""
    is_reporting = True
    """Whether losses log their parts. Of a lean update's minibatches only the last one's do, since
    those of the others would be forgotten."""

    def build(self) -> None:
        super().build()
        pipeline = self._learner_connector
        is_stateless = not any(module.is_stateful() for module in self.module.values())
        if pipeline is None or not self.config.add_default_connectors_to_learner_pipeline:
            return  # the user's own pipeline
        # RLlib's would be of env steps, not of agents', and empty below the length of a sequence.
        self.has_own_minibatches = True
        if not is_stateless:
            # RLlib standardises over the steps that it appends, too. Without them three seeds of
            # seven failed to learn CartPole without velocities, with them none of six.
            if not self.should_standardize_advantages:
                keep_advantages_raw(pipeline)
            return
        self.is_lean = True
        self._metrics_learner_inner_update = _Unwatched()
        pipeline.connectors[:] = [
            EpisodesToBatch(
                gamma=self.config.gamma,
                lambda_=self.config.lambda_,
                should_standardize=self.should_standardize_advantages,
            )
        ]

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        """RLlib's Adam, but in one kernel for all parameters, and with the config's epsilon."""
        assert config is not None
        params = self.get_parameters(self.module[module_id])
        self.register_optimizer(
            module_id=module_id,
            optimizer=FusedAdam(params, config.optimizer_epsilon),
            params=params,
            lr_or_lr_schedule=config.lr,
        )

    def _create_iterator_if_necessary(
        self,
        *,
        training_data: TrainingData,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not self.has_own_minibatches or training_data.data_iterators:
            return super()._create_iterator_if_necessary(
                training_data=training_data,
                num_total_minibatches=num_total_minibatches,
                num_epochs=num_epochs,
                minibatch_size=minibatch_size,
                shuffle_batch_per_epoch=shuffle_batch_per_epoch,
                **kwargs,
            )
        batch = self._make_batch_if_necessary(training_data=training_data)
        for module_id in list(batch.policy_batches):
            if not self.should_module_be_updated(module_id, batch):
                del batch.policy_batches[module_id]
        if not batch.policy_batches:
            return []
        self.module.foreach_module(lambda _, module: module.train())
        for _ in range(num_epochs):
            super()._log_steps_trained_metrics(batch)
        super()._log_metrics(batch)
        return self._minibatches(
            batch.policy_batches,
            size=minibatch_size,
            num_epochs=num_epochs,
            should_shuffle=shuffle_batch_per_epoch,
            note_progress=self._begin_minibatch,
        )

    def _minibatches(
        self, batches: Mapping[str, Mapping[str, Any]], **how: Any
    ) -> Iterator[Minibatch]:
        """What a lean update goes over: `minibatches`, unless a subclass says otherwise."""
        return minibatches(batches, **how)

    def _begin_minibatch(self, share: float) -> None:
        self.is_reporting = share == 1.0
        self.note_progress(share)

    def _set_slicing_by_batch_id(self, batch: Any, *, value: bool) -> Any:
        if isinstance(batch, Minibatch):  # which nothing slices any more
            return batch
        return super()._set_slicing_by_batch_id(batch, value=value)

    def _log_steps_trained_metrics(self, batch: Any) -> None:
        if not isinstance(batch, Minibatch):  # minibatches were counted with their batch
            super()._log_steps_trained_metrics(batch)

    def _log_metrics(self, batch: Any) -> None:
        if not isinstance(batch, Minibatch):
            super()._log_metrics(batch)

    def _update(self, batch: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        if not self.is_lean:
            return super()._update(batch, **kwargs)
        # Not `forward_train`, which walks over all submodules to put them into training mode.
        fwd_out = {m: self.module[m].unwrapped()._forward_train(batch[m]) for m in batch}
        losses = self.compute_losses(fwd_out=fwd_out, batch=batch)
        self.apply_gradients(self.postprocess_gradients(self.compute_gradients(losses)))
        return fwd_out, losses, {}


class _Unwatched:
    """Stands in for a Prometheus histogram, which takes 0.2 ms a minibatch and is never read."""

    def observe(self, value: float) -> None:
        pass


def mean_over(batch: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """Returns the mean of ``[B]`` or ``[B, T]`` over the steps that ``LOSS_MASK`` leaves."""
    mask = batch.get(Columns.LOSS_MASK)
    return lambda x: x.mean() if mask is None else x[mask].mean()


def advantages_of_own_actions(batch: dict[str, Any]) -> Tensor:
    """Returns the advantages ``[B]``, 0 where the action was chosen elsewhere.

    Such actions (see `Inference`) have an infinite ``ACTION_LOGP``. A policy gradient with them
    would be off-policy: they have no weight in the policy's part of the loss.
    """
    advantages: Tensor = batch[Postprocessing.ADVANTAGES]
    logp = batch.get(Columns.ACTION_LOGP)
    return advantages if logp is None else advantages.masked_fill(logp.isinf(), 0.0)


def actor_critic_loss(
    learner: LeanUpdate,
    module_id: str,
    config: AlgorithmConfig,
    *,
    policy_loss: Tensor,
    vf_loss: Tensor,
    entropy: Tensor,
    values: Tensor,
    targets: Tensor,
) -> Tensor:
    """Returns ``policy_loss + c_v vf_loss - c_e entropy``, where ``c_e`` may be a schedule.

    The parts are logged under RLlib's names.

    Args:
        learner: logs the parts if it `is_reporting`, and holds the schedules.
        module_id: whose loss it is.
        config: of that module; has ``vf_loss_coeff``.
        policy_loss, vf_loss, entropy: scalars.
        values, targets: ``[B]``, for the share of the targets' variance that the values explain.
    """
    entropy_coeff = learner.entropy_coeff_schedulers_per_module[module_id].get_current_value()
    if learner.is_reporting:
        learner.metrics.log_dict(
            {
                POLICY_LOSS_KEY: policy_loss.detach(),
                VF_LOSS_KEY: vf_loss.detach(),
                ENTROPY_KEY: entropy.detach(),
                VF_EXPLAINED_VAR: explained_variance(targets, values.detach()),
            },
            key=module_id,
            window=1,
        )
    return policy_loss + config.vf_loss_coeff * vf_loss - entropy_coeff * entropy


class RawAdvantageEstimation(GeneralAdvantageEstimation):
    """RLlib's GAE without the standardisation at its end.

    RLlib standardises in place and keeps neither mean nor deviation. Its value targets are raw,
    though, and the advantage is by definition the target minus the value. That takes one more pass
    of the value network, but no copy of the connector's code.
    """

    def __call__(
        self, *, rl_module: MultiRLModule, batch: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        batch = super().__call__(rl_module=rl_module, batch=batch, **kwargs)
        for module_id, module_batch in batch.items():
            module = rl_module[module_id]
            if not isinstance(module.unwrapped(), ValueFunctionAPI):
                continue
            with torch.no_grad():
                values = module.unwrapped().compute_values(module_batch)
            module_batch[Postprocessing.ADVANTAGES] = (
                module_batch[Postprocessing.VALUE_TARGETS] - values
            )
        return batch


def keep_advantages_raw(pipeline: ConnectorPipelineV2) -> None:
    """Puts `RawAdvantageEstimation` in the place of RLlib's GAE, if that is in the pipeline."""
    for connector in pipeline.connectors:
        if type(connector) is GeneralAdvantageEstimation:
            raw = RawAdvantageEstimation(gamma=connector.gamma, lambda_=connector.lambda_)
            pipeline.insert_after(GeneralAdvantageEstimation, raw)
            pipeline.remove(GeneralAdvantageEstimation)
            return
