"""One update of some parameters: backward, a check of losses and norms, clip, optimizer step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from muxrl.servers.algorithms.optimizers import Optimizer, adam_of
from muxrl.servers.training.skipped_updates import MAX_GRADIENT, MAX_LOSS, size_of

Points = float | Sequence[tuple[float, float]]
"""A number, or a schedule ``[(env step, value), ...]``, the first at 0: linear between two points,
and constant after the last one."""

ClipBy = Literal["value", "norm", "global_norm"]


def value_at(points: Points, env_steps: int) -> float:
    """Returns a schedule's value after some env steps, or the number itself."""
    if isinstance(points, int | float):
        return float(points)
    # Called at every step that acts, and `np.interp` takes 7 µs longer.
    start, value = points[0]
    if env_steps < start:  # of a schedule that callbacks have set
        return float(value)
    for end, last in points[1:]:
        if env_steps < end:
            return (last - value) / (end - start) * (env_steps - start) + value
        start, value = end, last
    return float(value)


class Step:
    """Updates parameters by the gradient of a loss.

    Unsound updates are skipped: nothing changes if a gradient or the loss is infinite, NaN or so
    large that an optimizer's mean of squares would overflow.

    Args:
        groups: parameters by name of the group; each group's gradients are clipped by themselves.
        lr: learning rate, perhaps a schedule; or a function that returns it, called by `follow`, as
            callbacks may set another one.
        clip: largest norm, or value; None: no clipping.
        clip_by: ``global_norm`` of a group, ``norm`` of each tensor, or ``value``.
        make: makes the optimizer for groups of parameters; None: Adam.
        eps: of Adam.
        factors: by group: a factor of the learning rate.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[nn.Parameter]],
        lr: Points | Callable[[], Points],
        *,
        clip: float | None = None,
        clip_by: ClipBy = "global_norm",
        eps: float = 1e-8,
        make: Callable[[Sequence[Sequence[nn.Parameter]]], Optimizer] | None = None,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        self.params = [parameter for own in groups.values() for parameter in own]
        self._sizes = {name: len(own) for name, own in groups.items()}
        self._lr, self._clip, self._clip_by = lr, clip, clip_by
        make = make or partial(adam_of, eps=eps)
        self._factors = [1.0] if factors is None else [factors[name] for name in groups]
        self.optimizer = make([self.params] if factors is None else list(groups.values()))
        self.norms = dict.fromkeys(groups, 0.0)
        """By group: the norm of the last update's gradient before it was clipped."""
        self.follow(0)

    @property
    def lr(self) -> float:
        """Current learning rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    def follow(self, env_steps: int) -> None:
        """Sets the learning rate to its scheduled value after some env steps."""
        lr = value_at(self._lr() if callable(self._lr) else self._lr, env_steps)
        for group, factor in zip(self.optimizer.param_groups, self._factors, strict=True):
            group["lr"] = factor * lr

    def apply(self, gradients: Sequence[Tensor | None], norms: Sequence[float]) -> None:
        """Clips gradients in place, and makes an optimizer step.

        Args:
            gradients: of `params`; None for a parameter without one.
            norms: of the gradients that are not None.
        """
        left, left_norms = iter(gradients), iter(norms)
        for name, num in self._sizes.items():
            own = [g for g in (next(left) for _ in range(num)) if g is not None]
            self._clipped(name, own, [next(left_norms) for _ in own])
        for parameter, gradient in zip(self.params, gradients, strict=True):
            # A convolution's gradient may have another memory layout than its weights, and the
            # fused Adam goes through both number by number.
            parameter.grad = None if gradient is None else gradient.contiguous()
        self.optimizer.step()

    def _clipped(self, name: str, gradients: list[Tensor], norms: list[float]) -> None:
        norm = math.sqrt(sum(one * one for one in norms))
        self.norms[name] = norm
        limit = self._clip
        if limit is None or not gradients:
            return
        if self._clip_by == "value":
            for gradient in gradients:
                gradient.clamp_(-limit, limit)
        elif self._clip_by == "norm":
            for gradient, own in zip(gradients, norms, strict=True):
                if own > limit:
                    gradient.mul_(limit / own)
        elif norm > limit:
            torch._foreach_mul_(gradients, limit / norm)


def update_together(losses: Sequence[tuple[Step, Tensor]]) -> str:
    """Makes the updates of losses that were computed with the same weights, all of them or none.

    Returns:
        Why no update was made, in words; "" if they were made.
    """
    gradients = [torch.autograd.grad(loss, step.params, allow_unused=True) for step, loss in losses]
    present = [gradient for own in gradients for gradient in own if gradient is not None]
    # Stacked, to wait for the device only once.
    numbers = [*(loss.detach() for _, loss in losses), *torch._foreach_norm(present)]
    found = torch.stack(numbers).tolist()
    size = max(found[: len(losses)], key=size_of)
    largest = max(found[len(losses) :], key=size_of, default=0.0)
    if not (abs(size) <= MAX_LOSS and largest <= MAX_GRADIENT):
        return (
            f"its loss is {size:.3g} and its gradient {largest:.3g}, beyond {MAX_LOSS:.0e} or "
            f"{MAX_GRADIENT:.0e} or not finite"
        )
    norms = iter(found[len(losses) :])
    for (step, _), own in zip(losses, gradients, strict=True):
        step.apply(own, [next(norms) for gradient in own if gradient is not None])
    return ""


class Targets:
    """Target networks, which follow others slowly.

    Args:
        pairs: of a network and its target.
    """

    def __init__(self, *pairs: tuple[nn.Module, nn.Module]) -> None:
        self._of = [t for one, _ in pairs for t in one.state_dict(keep_vars=True).values()]
        self._copies = [t for _, copy in pairs for t in copy.state_dict(keep_vars=True).values()]
        for copy in self._copies:
            copy.requires_grad_(False)
        self.follow(1.0)

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Moves the targets towards their networks by a share `tau`; 1 makes them equal."""
        if tau == 1.0:
            torch._foreach_copy_(self._copies, self._of)
        else:
            torch._foreach_lerp_(self._copies, self._of, tau)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch, and restores its generator on the CPU afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
