"""Acting on a GPU, in passes of so much work that it is faster than on the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tree
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from torch.utils.flop_counter import FlopCounterMode

DEVICE = "cuda"
MIN_FLOPS = 1.5e7
"""A pass of less takes longer there: to start its kernels and move its rows takes a fixed time."""


class ModulesOnGpu:
    """A copy of the modules on the GPU.

    Args:
        build: makes one.
    """

    def __init__(self, build: Callable[[], MultiRLModule]) -> None:
        self._modules = build()
        for _, module in self._modules.items():
            module.to(DEVICE)
        self._flops: dict[str, float] = {}
        """By policy, for one row."""
        self._num_loads = -1

    def is_worth(
        self, policy_id: str, num_rows: int, module: Any, batch: Callable[[], dict[str, Any]]
    ) -> bool:
        """Whether a pass is faster here.

        Args:
            policy_id: whose.
            num_rows: of the pass.
            module: on the processor, where the first pass of a policy is made to count its work.
            batch: makes what it reads.
        """
        if policy_id not in self._flops:
            with FlopCounterMode(display=False) as counter, torch.inference_mode():
                module.forward_inference(batch())
            # It knows of no fused LSTM.
            weights = sum(2 * one.numel() for one in module.parameters() if one.dim() > 1)
            self._flops[policy_id] = max(counter.get_total_flops() / num_rows, weights)
        return self._flops[policy_id] * num_rows >= MIN_FLOPS

    def module(self, policy_id: str, live: MultiRLModule, num_loads: int) -> ModuleOnGpu:
        """Returns a policy's module with the weights of `live`.

        Args:
            policy_id: whose.
            live: on the processor.
            num_loads: how often these have changed.
        """
        if num_loads != self._num_loads:
            for name, module in self._modules.items():
                module.load_state_dict(live[name].state_dict())
            self._num_loads = num_loads
        return ModuleOnGpu(self._modules[policy_id])


class ModuleOnGpu:
    """A module that reads and answers on the processor, and computes on the GPU."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.get_exploration_action_dist_cls = module.get_exploration_action_dist_cls

    def forward_exploration(self, batch: dict[str, Any], t: int) -> dict[str, Any]:
        return _moved(self._module.forward_exploration(_moved(batch, DEVICE), t=t), "cpu")

    def forward_inference(self, batch: dict[str, Any]) -> dict[str, Any]:
        return _moved(self._module.forward_inference(_moved(batch, DEVICE)), "cpu")


def _moved(values: dict[str, Any], device: str) -> dict[str, Any]:
    moved: dict[str, Any] = tree.map_structure(
        lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, values
    )
    return moved
