"""What learners of teams do around their losses: clip gradients, move targets, count updates."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.utils import update_target_network
from ray.rllib.core.rl_module.apis import TargetNetworkAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import NUM_TARGET_UPDATES
from torch import Tensor

from muxrl.servers.algorithms.sound_updates import MAX_SKIPPED_FROM_REPLAY, SoundUpdates

NUM_UPDATES = "num_updates"
_NUM_UPDATES_STATE = "num_updates_per_module"


class TeamReplayLearner(SoundUpdates):
    """Without losses; it stands before RLlib's learner among the bases of one that has them.

    Batches have no learner connector to run through. Metrics of each module: ``num_updates``, and
    for each optimizer the gradient's norm before clipping, ``grad_norm`` or ``NAME_grad_norm``.
    """

    max_skipped_in_a_row = MAX_SKIPPED_FROM_REPLAY

    def build(self) -> None:
        if self._is_built:
            return
        super().build()
        self._num_updates = dict.fromkeys(self.module.keys(), 0)
        self.module.foreach_module(lambda _, module: module.make_target_networks())

    def add_module(
        self, *, module_id: str, module_spec: RLModuleSpec, **kwargs: Any
    ) -> MultiRLModuleSpec:
        spec = super().add_module(module_id=module_id, module_spec=module_spec, **kwargs)
        self._num_updates[module_id] = 0
        self.module[module_id].unwrapped().make_target_networks()
        return spec

    def remove_module(self, module_id: str, **kwargs: Any) -> MultiRLModuleSpec:
        spec = super().remove_module(module_id, **kwargs)
        self._num_updates.pop(module_id, None)
        return spec

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI]

    def postprocess_gradients_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig | None = None,
        module_gradients_dict: dict[Any, Tensor | None],
    ) -> dict[Any, Tensor | None]:
        """Clips the gradient of each optimizer by its norm, and logs the norm before clipping."""
        assert config is not None
        for name, optimizer in self.get_optimizers_for_module(module_id):
            found = map(module_gradients_dict.get, self._optimizer_parameters[optimizer])
            gradients = [gradient for gradient in found if gradient is not None]
            if not gradients:  # the module is not in this update, or left out
                continue
            is_only_one = name == DEFAULT_OPTIMIZER
            norm = float(torch.nn.utils.get_total_norm(gradients))
            metric = "grad_norm" if is_only_one else f"{name}_grad_norm"
            self.metrics.log_value((module_id, metric), norm, window=1)
            if config.grad_clip is not None and norm > config.grad_clip:
                torch._foreach_mul_(gradients, config.grad_clip / (norm + 1e-6))
        return module_gradients_dict

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Moves the targets of the modules that were updated, if it is time.

        RLlib's SAC would move those of all modules, and counts env steps between two moves.
        """
        TorchLearner.after_gradient_based_update(self, timesteps=timesteps)
        for module_id in self._modules_in_update:
            config = self.config.get_config_for_module(module_id)
            self._num_updates[module_id] += 1
            self.metrics.log_value((module_id, NUM_UPDATES), 1, reduce="lifetime_sum")
            if not self.should_move_targets(self._num_updates[module_id], config):
                continue
            for main, target in self.module[module_id].unwrapped().get_target_network_pairs():
                update_target_network(main_net=main, target_net=target, tau=config.tau)
            self.metrics.log_value((module_id, NUM_TARGET_UPDATES), 1, reduce="lifetime_sum")

    @staticmethod
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
        # RLlib's schedules give tensors, which torch's `foreach` optimizers refuse.
        TorchLearner._set_optimizer_lr(optimizer, float(lr))

    def should_move_targets(self, num_updates: int, config: AlgorithmConfig) -> bool:
        """Returns whether targets move after the update of a module that has had so many."""
        return True

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """RLlib's state, which has the target networks in it, and the number of updates."""
        state = super().get_state(components, not_components=not_components, **kwargs)
        state[_NUM_UPDATES_STATE] = dict(self._num_updates)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if _NUM_UPDATES_STATE in state:
            self._num_updates.update(state[_NUM_UPDATES_STATE])

    def _update(self, batch: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        self._modules_in_update = tuple(batch)
        return super()._update(batch, **kwargs)
