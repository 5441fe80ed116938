"""Adam and RMSprop, by torch's functions.

A class of `torch.optim` imports torch's compiler with its first object: a second of processor time
and 75 MiB in every process that learns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

STEP = "step"


class Optimizer(ABC):
    """Steps by the gradients that parameters hold; a parameter without one stays as it is.

    Attributes:
        param_groups: each with its ``params`` and ``lr``, as `torch.optim.Optimizer` has them.
        state: what was gathered of each parameter, by `torch.optim`'s names.

    Args:
        groups: of parameters.
        eps: what is added to the root of the mean squared gradient.
    """

    gathers: ClassVar[tuple[str, ...]]
    """Names of the means that it keeps of each parameter's gradients."""

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], eps: float) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(params), "lr": 0.0} for params in groups
        ]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._eps = eps

    @torch.no_grad()
    def step(self) -> None:
        """Makes a step."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            states = [self.state.get(p) or self._begin(p) for p in moved]
            kept = [[state[name] for state in states] for name in (*self.gathers, STEP)]
            if moved:
                self._move(moved, [p.grad for p in moved], kept, group["lr"])

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = {name: torch.zeros_like(parameter) for name in self.gathers}
        self.state[parameter] = {STEP: torch.zeros((), device=parameter.device), **state}
        return self.state[parameter]

    @abstractmethod
    def _move(
        self, params: list[Any], grads: list[Any], kept: list[list[Tensor]], lr: float
    ) -> None:
        """Moves parameters.

        Args:
            params, grads: they, and their gradients.
            kept: of each parameter, by `gathers`, and how many steps were made.
            lr: learning rate.
        """

    @property
    def _params(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def gathered(self) -> dict[int, dict[str, Tensor]]:
        """Returns `state` by the numbers of parameters."""
        return {i: self.state[p] for i, p in enumerate(self._params) if p in self.state}

    def load(self, gathered: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continues from what `gathered` returned, of whichever device."""
        params = self._params
        self.state = {
            params[i]: {n: value.to(params[i].device, copy=True) for n, value in own.items()}
            for i, own in gathered.items()
        }


class Adam(Optimizer):
    """Kingma and Ba 2015 (arXiv 1412.6980), in one pass over all parameters."""

    gathers = ("exp_avg", "exp_avg_sq")

    def _move(
        self, params: list[Any], grads: list[Any], kept: list[list[Tensor]], lr: float
    ) -> None:
        averages, squares, steps = kept
        adam(
            params,
            grads,
            averages,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=0.0,
            eps=self._eps,
            maximize=False,
        )


class RMSprop(Optimizer):
    """Hinton's lecture notes (2012), as `torch.optim.RMSprop`.

    Args:
        groups, eps: see `Optimizer`.
        alpha: share of the mean squared gradient that each step keeps.
    """

    gathers = ("square_avg",)

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], eps: float, alpha: float) -> None:
        super().__init__(groups, eps)
        self._alpha = alpha

    def _move(
        self, params: list[Any], grads: list[Any], kept: list[list[Tensor]], lr: float
    ) -> None:
        squares, steps = kept
        rmsprop(
            params,
            grads,
            squares,
            [],
            [],
            steps,
            foreach=True,
            lr=lr,
            alpha=self._alpha,
            eps=self._eps,
            weight_decay=0.0,
            momentum=0.0,
            centered=False,
        )
