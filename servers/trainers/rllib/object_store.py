"""Keeps RLlib's objects in this process instead of Ray's object store, if Ray is not running.

An `Algorithm` with a local env runner and learner starts no actors. It uses Ray only for
``ray.put``, of its config, IMPALA's batches and new weights, and for ``ray.get`` of the same
objects a moment later in the same process. Without this module the first ``ray.put`` would start a
cluster of eight processes.
"""

from __future__ import annotations

import copy
from typing import Any

import ray

_ray_put, _ray_get = ray.put, ray.get


class Kept:
    """Holds an object, in place of a `ray.ObjectRef`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def keep_objects_here() -> None:
    """Makes ``ray.put`` and ``ray.get`` work without Ray running; with Ray they work as always."""
    ray.put, ray.get = _put, _get


def _put(value: Any, **options: Any) -> Any:
    if ray.is_initialized():
        return _ray_put(value, **options)
    # Ray copies, too: IMPALA's learning thread goes on changing the weights that it has put.
    return Kept(copy.deepcopy(value))


def _get(refs: Any, **options: Any) -> Any:
    if isinstance(refs, Kept):
        return refs.value
    if isinstance(refs, list) and any(isinstance(ref, Kept) for ref in refs):
        return [_get(ref, **options) for ref in refs]
    return _ray_get(refs, **options)
