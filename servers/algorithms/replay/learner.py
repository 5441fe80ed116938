"""A learner of drawn batches: a loss and a step of the optimizers for each policy, and no more.

RLlib's ``Learner.update`` makes a batch of episodes, logs and clips parameter by parameter. On
small networks that takes several times what the losses do.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import LR_KEY
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    MODULE_TRAIN_BATCH_SIZE_MEAN,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    NUM_TARGET_UPDATES,
    TD_ERROR_KEY,
    WEIGHTS_SEQ_NO,
)
from torch import Tensor

from muxrl.servers.algorithms.replay.replay import ROWS
from muxrl.servers.algorithms.sound_updates import SoundUpdates
from muxrl.servers.rllib.metrics import GatheringLogger
from muxrl.servers.training.skipped_updates import MAX_SKIPPED_FROM_REPLAY, largest_of


class ReplayLearner(SoundUpdates):
    """Stands before RLlib's learner among the bases of one that has losses.

    Losses are those of ``compute_loss_for_module``, from what the module's ``_forward_train``
    returns for a batch of `Replay.sample`, in tensors.

    Attributes:
        priorities: of the entries of each policy's last batch, ``[B]`` float32, where they were
            drawn by priority.
    """

    max_skipped_in_a_row = MAX_SKIPPED_FROM_REPLAY

    metrics: GatheringLogger

    def build(self) -> None:
        if self._is_built:
            return
        self.priorities: dict[str, Any] = {}
        self._targets: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        self._batches: Mapping[str, Mapping[str, Any]] = {}
        self.metrics = GatheringLogger(stats_cls_lookup=self.config.stats_cls_lookup, root=False)
        super().build()
        self.module.foreach_module(lambda _, module: module.train())

    def learn(self, batches: Mapping[str, Mapping[str, Any]], env_steps: int) -> None:
        """Makes one update of each policy that there is a batch of.

        Args:
            batches: by policy, tensors on the learner's device.
            env_steps: recorded so far; schedules go by them.

        Raises:
            LearnerDiverged: see `SoundUpdates`.
        """
        self._weights_seq_no += 1
        self._batches = batches
        for module_id, batch in batches.items():
            config = self.config.get_config_for_module(module_id)
            loss = self.compute_loss_for_module(
                module_id=module_id,
                config=config,
                batch=batch,
                # Not `forward_train`, which puts all submodules into training mode.
                fwd_out=self.module[module_id].unwrapped()._forward_train(batch),
            )
            td_error = self.metrics.take(module_id, TD_ERROR_KEY)
            if ROWS in batch and td_error is not None:
                self.priorities[module_id] = td_error.detach().cpu().numpy()
            self.metrics.log_value((module_id, self.TOTAL_LOSS_KEY), loss.detach(), window=1)
            self._step(module_id, config, loss)
            self._log_steps(module_id, batch)
        self._follow_schedules(env_steps)
        self.move_targets(batches, env_steps)

    def losses_of(self, module_id: str, loss: Tensor) -> Iterable[tuple[Tensor, Sequence[str]]]:
        """Yields losses, each with the optimizers whose parameters have its gradient.

        Args:
            module_id: whose they are.
            loss: what ``compute_loss_for_module`` has returned.
        """
        return [(loss, [name for name, _ in self.get_optimizers_for_module(module_id)])]

    @abstractmethod
    def move_targets(self, updated: Iterable[str], env_steps: int) -> None:
        """Has target networks follow the others, if it is time; after each update."""

    def follow(self, module_id: str, tau: float) -> None:
        """Moves a policy's target networks towards the others, by a share of the distance."""
        if module_id not in self._targets:
            pairs = self.module[module_id].unwrapped().get_target_network_pairs()
            ours = [tensor for main, _ in pairs for tensor in main.state_dict().values()]
            theirs = [tensor for _, target in pairs for tensor in target.state_dict().values()]
            self._targets[module_id] = ours, theirs
        main, target = self._targets[module_id]
        with torch.no_grad():
            if tau == 1.0:
                torch._foreach_copy_(target, main)
            else:
                torch._foreach_lerp_(target, main, tau)
        self.metrics.log_value((module_id, NUM_TARGET_UPDATES), 1, reduce="lifetime_sum")

    def norm_metric(self, optimizer_name: str) -> str:
        """Returns the name of the metric for the gradient's norm before it is clipped."""
        return f"gradients_{optimizer_name}_global_norm"

    @staticmethod
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
        # RLlib's schedules give tensors, which torch's `foreach` optimizers refuse.
        TorchLearner._set_optimizer_lr(optimizer, float(lr))

    def _step(self, module_id: str, config: AlgorithmConfig, loss: Tensor) -> None:
        """Steps the optimizers by their gradients, unless these are unsound."""
        there: dict[str, list[Tensor]] = {}
        optimizers = dict(self.get_optimizers_for_module(module_id))
        losses = list(self.losses_of(module_id, loss))
        for part, names in losses:
            parameters = {
                name: [p for group in optimizers[name].param_groups for p in group["params"]]
                for name in names
            }
            inputs = [p for of_one in parameters.values() for p in of_one]
            for parameter in inputs:
                parameter.grad = None
            part.backward(inputs=inputs, retain_graph=len(losses) > 1)
            for name, of_one in parameters.items():
                there[name] = [p.grad for p in of_one if p.grad is not None]
        every = [gradient for of_one in there.values() for gradient in of_one]
        # All numbers at once: one wait for the device.
        numbers = [loss.detach().sum(), *torch._foreach_norm(every)]
        size, *norms = torch.stack(numbers).cpu().tolist()
        if not self.is_sound(module_id, size, norms):
            return
        left = iter(norms)
        for name, of_one in there.items():
            norms = [next(left) for _ in of_one]
            norm = math.hypot(*norms)
            self.metrics.log_value((module_id, self.norm_metric(name)), norm, window=1)
            if config.grad_clip is not None:
                clip(of_one, norms, norm, config.grad_clip, config.grad_clip_by)
            optimizers[name].step()

    def _largest(self, module_id: str) -> Iterator[tuple[float, str]]:
        batch = self._batches[module_id]
        yield from largest_of(batch[Columns.REWARDS], "the reward")
        yield from largest_of(batch[Columns.OBS], "the observation")

    def _log_steps(self, module_id: str, batch: Mapping[str, Any]) -> None:
        mask = batch.get(Columns.LOSS_MASK)
        num = len(batch[Columns.REWARDS]) if mask is None else int(mask.sum())
        log = self.metrics.log_value
        log((module_id, WEIGHTS_SEQ_NO), self._weights_seq_no, window=1)
        log((module_id, MODULE_TRAIN_BATCH_SIZE_MEAN), num, reduce="mean")
        log((module_id, NUM_MODULE_STEPS_TRAINED), num, reduce="sum")
        log(
            (module_id, NUM_MODULE_STEPS_TRAINED_LIFETIME),
            num,
            reduce="lifetime_sum",
            with_throughput=True,
        )
        log((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), num, reduce="lifetime_sum")

    def _follow_schedules(self, env_steps: int) -> None:
        for name, optimizer in self._named_optimizers.items():
            schedule = self._optimizer_lr_schedules.get(optimizer)
            if schedule is not None and schedule.use_schedule:
                self._set_optimizer_lr(optimizer, lr=schedule.update(timestep=env_steps))
            module_id = self._optimizer_name_to_module[name]
            self.metrics.log_value(
                (module_id, f"{name.removeprefix(f'{module_id}_')}_{LR_KEY}"),
                self._get_optimizer_lr(optimizer),
                reduce="mean",
            )


def clip(
    gradients: list[Tensor], norms: Sequence[float], norm: float, limit: float, by: str
) -> None:
    """Clips gradients in place as RLlib does.

    Args:
        gradients: of one optimizer.
        norms: of each.
        norm: of all together.
        limit: what is clipped to.
        by: "value", every number; "norm", each gradient; "global_norm", all together.
    """
    if by == "value":
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)
    elif by == "norm":
        for gradient, one in zip(gradients, norms, strict=True):
            if one > limit:
                gradient.mul_(limit / one)
    elif norm > limit:
        torch._foreach_mul_(gradients, limit / (norm + 1e-6))
