"""Gradients of actor and critics, each by its own loss, and what a learner is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.policy.sample_batch import SampleBatch
from torch import Tensor

from muxrl.servers.algorithms.joint_critics.step_replay import StepBatch
from muxrl.servers.algorithms.team_replay.learner import TeamReplayLearner

CRITIC, POLICY = "qf", "policy"
"""RLlib's names of SAC's optimizers; a loss is called ``NAME_loss``."""


class JointCriticLearner(TeamReplayLearner):
    """Has an Adam optimizer for each loss, and gives it that loss's gradient alone.

    Metrics of each module, over the last batch, beside those of `TeamReplayLearner`: the losses,
    and what a subclass gives to `keep_losses`.
    """

    def build(self) -> None:
        self._losses: dict[tuple[str, str], Tensor] = {}
        super().build()

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        assert config is not None
        module = self.module[module_id].unwrapped()
        self._add_adam(module_id, CRITIC, self.get_parameters(module.critic), config.critic_lr)
        self._add_adam(module_id, POLICY, self.get_parameters(module.actor), config.actor_lr)

    def _add_adam(self, module_id: str, name: str, params: Any, lr: Any) -> None:
        self.register_optimizer(
            module_id=module_id,
            optimizer_name=name,
            optimizer=torch.optim.Adam(params, foreach=True),
            params=params,
            lr_or_lr_schedule=lr,
        )

    def keep_losses(
        self, module_id: str, losses: Mapping[str, Tensor], metrics: Mapping[str, Tensor]
    ) -> Tensor:
        """Keeps the losses for `compute_gradients`, by optimizer, logs them, and adds them up.

        An optimizer without a loss does nothing in this update.
        """
        for name, loss in losses.items():
            self._losses[module_id, name] = loss
        named = {f"{name}_loss": loss.detach() for name, loss in losses.items()}
        self.metrics.log_dict({**named, **metrics}, key=module_id, window=1)
        return sum(losses.values(), torch.zeros(()))

    def compute_gradients(
        self, loss_per_module: dict[str, Tensor], **kwargs: Any
    ) -> dict[Any, Any]:
        """Returns the gradient of each loss by the parameters of its optimizer alone.

        So the actor's loss, which goes through the critics, does not move them.
        """
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)  # of modules that are not in this update, too
        gradients: dict[Any, Any] = {}
        for (module_id, name), loss in self._losses.items():
            refs = self._optimizer_parameters[self.get_optimizer(module_id, name)]
            found = torch.autograd.grad(loss, [self._params[r] for r in refs], retain_graph=True)
            gradients.update(zip(refs, found, strict=True))
        self._losses.clear()
        return gradients


def to_sample_batch(batch: StepBatch) -> SampleBatch:
    """Returns tensors that share the batch's memory, under RLlib's column names."""

    def tensors(columns: dict[str, np.ndarray]) -> dict[str, Tensor]:
        return {key: torch.from_numpy(value) for key, value in columns.items()}

    return SampleBatch(
        {
            Columns.OBS: tensors(batch.obs),
            Columns.ACTIONS: torch.from_numpy(batch.actions),
            Columns.REWARDS: torch.from_numpy(batch.rewards),
            Columns.TERMINATEDS: torch.from_numpy(batch.terminated),
            Columns.NEXT_OBS: tensors(batch.next_obs),
        }
    )
