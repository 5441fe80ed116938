"""A second device for torch that needs no hardware, and every algorithm's learner on it.

    python -m tests.learning.another_device [CASE...]

It stands in for a GPU where there is none. Its tensors are computed on the CPU, but it is as strict
as a GPU: arithmetic with tensors of both devices raises, and so does `Tensor.numpy`. A learner that
leaves a tensor on the CPU, or reads one of the device, fails as it would on a GPU. It cannot show
CUDA's kernels, streams, memory and speed.

Prints one JSON object. For each case of `tests.servers.resumable` it has: whether weights changed,
the devices of the learner's and of the live acting modules' parameters, how many passes acted on
the device (all do, however small), and problems.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import tree
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from muxrl.servers.algorithms import torch_trainer
from muxrl.servers.trainers import entry
from muxrl.servers.trainers.interface import PolicySpec

NAME = "another"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
TAKES_THOSE_OF_THE_CPU = {
    "copy_", "_foreach_copy_", "index", "index_put", "index_put_", "_index_put_impl_"
}  # fmt: skip
"""Operations in which CUDA, too, takes a tensor of the CPU with its own tensors."""


class There(torch.Tensor):
    """A tensor on the device; `held` has its values on the CPU."""

    held: torch.Tensor
    __module__ = "torch"  # tensors of a GPU are in torch's module, too

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> There:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=DEVICE,
        )  # fmt: skip
        tensor.held = held
        return tensor  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.held})"

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _compute(op, *args, **(kwargs or {}))


def _compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Computes on the CPU what an operation of torch would compute on the device."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    left_behind = [x for x in tensors if not isinstance(x, There) and x.dim() > 0]
    name = op.overloadpacket.__name__
    if there and left_behind and name not in TAKES_THOSE_OF_THE_CPU:
        raise RuntimeError(f"{name}: tensors of two devices")
    device = kwargs.get("device")
    goes_there = bool(there) if device is None else torch.device(device).type == NAME
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    held = tree_map(lambda x: x.held if isinstance(x, There) else x, (args, kwargs))
    result = op(*held[0], **held[1])
    known = {id(x.held): x for x in there}  # results in place are the arguments themselves

    def told(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) in known:
            return known[id(x)]
        return There(x) if goes_there else x

    return tree_map(told, result)


_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(_compute, "PrivateUse1")


def _made_here_first(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wraps `torch.tensor`, which takes no device that was made in Python."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != NAME:
            return make(*args, device=device, **kwargs)
        return make(*args, **kwargs).to(DEVICE)

    return made


def _computed_here(cell: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `torch.gru` or `torch.lstm`, whose parts for a GPU do not exist on the CPU."""

    def moved(x: Any) -> Any:
        assert not isinstance(x, torch.Tensor) or x.device == DEVICE, "tensors of two devices"
        return x.cpu() if isinstance(x, torch.Tensor) else x

    def computed(x: torch.Tensor, *others: Any) -> Any:
        if x.device != DEVICE:
            return cell(x, *others)
        is_training = others[5]
        if torch.is_grad_enabled() and not is_training:  # as cuDNN does
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        return tree_map(lambda y: y.to(DEVICE), cell(*tree_map(moved, (x, *others))))

    return computed


class Counting(torch_trainer._OnGpu):
    """Counts the passes that acted on the device."""

    num_passes = 0

    def ask(self, *args: Any) -> Any:
        Counting.num_passes += 1
        return super().ask(*args)


def _learn(case: str) -> dict[str, Any]:
    from tests.servers.resumable import Served, plan_of

    from muxrl.servers.config import ResourcesConfig

    Counting.num_passes = 0
    served = Served(plan_of(case, resources=ResourcesConfig(num_cpus=1, num_gpus=1)))
    acting: Any = served.policies.acting
    before = tree.flatten(acting.get("networks"))
    served.play(0, 8)
    served.end()
    after = tree.flatten(acting.get("networks"))
    return {
        "learned": any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)),
        "learner": _devices(acting.learners.values()),
        "acting": _devices(map(acting.acting, acting.learners)),
        "num_acted": Counting.num_passes,
        "problems": served.problems,
    }


def _devices(trainers: Iterable[Any]) -> list[str]:
    return sorted({p.device.type for one in trainers for p in one.net.parameters()})


def _there(*args: Any) -> PolicySpec:
    return dataclasses.replace(PolicySpec(*args), device=str(DEVICE))


def main(cases: list[str]) -> None:
    from tests.servers.resumable import CASES

    torch.set_num_threads(1)
    torch.tensor, torch.as_tensor = map(_made_here_first, (torch.tensor, torch.as_tensor))
    torch.gru, torch._VF.lstm = map(_computed_here, (torch.gru, torch.lstm))  # type: ignore[attr-defined]
    entry.PolicySpec = _there  # type: ignore[assignment, misc]
    torch.inference_mode = torch.no_grad  # its dispatch reaches `There` like any other tensor
    torch_trainer._MIN_GPU_FLOPS, torch_trainer._OnGpu = 0.0, Counting  # type: ignore[misc]
    told = {case: _learn(case) for case in cases or CASES}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
