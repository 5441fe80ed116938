"""Adam (Kingma and Ba 2015, arXiv 1412.6980) in one kernel, called without detours.

Before it calls that kernel torch's own `step` opens a range of its profiler, checks and sorts the
parameters. For small networks that takes longer than the forward pass of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class FusedAdam(torch.optim.Adam):
    """Torch's, to the bit; hooks and the profiler do not see its steps.

    Args:
        params: all on one device.
        eps: what is added to the root of the mean squared gradient.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], eps: float = 1e-8) -> None:
        super().__init__(params, eps=eps, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        groups = [
            (group, [parameter for parameter in group["params"] if parameter.grad is not None])
            for group in self.param_groups
        ]
        # Torch makes the state of a parameter that has none.
        if closure is not None or not all(self.state[p] for _, params in groups for p in params):
            return super().step(closure)
        for group, params in groups:
            if not params:
                continue
            states = [self.state[parameter] for parameter in params]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                params,
                [parameter.grad for parameter in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return None

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it
