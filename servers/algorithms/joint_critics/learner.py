"""Gradients of actor and critics, each by its own loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from torch import Tensor

from muxrl.servers.algorithms.fused_adam import FusedAdam
from muxrl.servers.algorithms.team_replay.learner import TeamReplayLearner

CRITIC, POLICY = "qf", "policy"
"""RLlib's names of SAC's optimizers; a loss is called ``NAME_loss``."""


class JointCriticLearner(TeamReplayLearner):
    """Has an Adam optimizer for each loss, and gives it that loss's gradient alone.

    Metrics of each module, over the last batch, beside those of `TeamReplayLearner`: the losses,
    and what a subclass gives to `keep_losses`.
    """

    def build(self) -> None:
        self._losses: dict[str, dict[str, Tensor]] = {}
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
            optimizer=FusedAdam(params),
            params=params,
            lr_or_lr_schedule=lr,
        )

    def keep_losses(
        self, module_id: str, losses: Mapping[str, Tensor], metrics: Mapping[str, Tensor]
    ) -> Tensor:
        """Keeps the losses for `losses_of`, by optimizer, logs them, and adds them up.

        An optimizer without a loss does nothing in this update.
        """
        self._losses[module_id] = dict(losses)
        named = {f"{name}_loss": loss.detach() for name, loss in losses.items()}
        self.metrics.log_dict({**named, **metrics}, key=module_id, window=1)
        return sum(losses.values(), torch.zeros(()))

    def losses_of(self, module_id: str, loss: Tensor) -> Iterator[tuple[Tensor, Sequence[str]]]:
        for name, of_one in self._losses.pop(module_id).items():
            yield of_one, (name,)
