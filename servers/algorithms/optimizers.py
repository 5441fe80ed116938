"""Adam and RMSprop, with torch's functional forms.

The first object of a `torch.optim` class imports torch's compiler: a second of processor time and
75 MiB in every process that learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

STEP = "step"
_NUM_MEANS = 3
"""Lists of means that torch's functions take."""


class Optimizer:
    """Steps by the gradients in ``grad``; a parameter without a gradient stays as it is.

    Attributes:
        param_groups: each with its ``params`` and ``lr``, as in `torch.optim.Optimizer`.
        state: by parameter: its step count and means of gradients, by `torch.optim`'s names.

    Args:
        groups: of parameters.
        move: torch's function, with all arguments but the learning rate.
        gathers: names of the means of each parameter's gradients that the function keeps.
    """

    def __init__(
        self, groups: Sequence[Sequence[nn.Parameter]], move: Callable[..., None], *gathers: str
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(params), "lr": 0.0} for params in groups
        ]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._move, self._gathers = move, gathers

    @torch.no_grad()
    def step(self) -> None:
        """Makes a step of all parameters that have a gradient."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if not moved:
                continue
            states = [self.state.get(p) or self._begin(p) for p in moved]
            means = [[state[name] for state in states] for name in self._gathers]
            means += [[] for _ in range(_NUM_MEANS - len(means))]
            steps = [state[STEP] for state in states]
            self._move(moved, [p.grad for p in moved], *means, steps, lr=group["lr"])

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = {name: torch.zeros_like(parameter) for name in self._gathers}
        self.state[parameter] = {STEP: torch.zeros((), device=parameter.device), **state}
        return self.state[parameter]

    @property
    def _params(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def gathered(self) -> dict[int, dict[str, Tensor]]:
        """Returns `state` by the indices of parameters, for checkpoints."""
        return {i: self.state[p] for i, p in enumerate(self._params) if p in self.state}

    def load(self, gathered: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Loads what `gathered` returned, from any device; settings stay as they are."""
        params = self._params
        self.state = {
            params[int(i)]: {n: one.to(params[int(i)].device, copy=True) for n, one in own.items()}
            for i, own in gathered.items()
        }


def adam_of(groups: Sequence[Sequence[nn.Parameter]], eps: float) -> Optimizer:
    """Returns Adam, Kingma and Ba 2015 (arXiv 1412.6980), fused over all parameters.

    Args:
        groups: of parameters.
        eps: added to the root of the mean squared gradient.
    """
    fixed = {"fused": True, "amsgrad": False, "weight_decay": 0.0, "maximize": False}
    move = partial(adam, **fixed, beta1=0.9, beta2=0.999, eps=eps)  # type: ignore[arg-type]
    return Optimizer(groups, move, "exp_avg", "exp_avg_sq")


def rmsprop_of(groups: Sequence[Sequence[nn.Parameter]], eps: float, alpha: float) -> Optimizer:
    """Returns RMSprop, Hinton's lecture notes (2012), as `torch.optim.RMSprop`.

    Args:
        groups, eps: see `adam_of`.
        alpha: share of the mean squared gradient that each step keeps.
    """
    fixed = {"foreach": True, "weight_decay": 0.0, "momentum": 0.0, "centered": False}
    move = partial(rmsprop, **fixed, alpha=alpha, eps=eps)  # type: ignore[arg-type]
    return Optimizer(groups, move, "square_avg")
