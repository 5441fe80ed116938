"""What RLlib keeps in Ray's object store, kept in this process where there is no Ray.

An `Algorithm` whose env runner and learner are local starts no actor. It asks two things of Ray:
``ray.put`` for its config, for IMPALA's batches and for new weights, and ``ray.get`` for the same
objects a moment later, in the same process. Left alone, the first ``ray.put`` starts a cluster of
eight processes.
"""

from __future__ import annotations

import copy
from typing import Any

import ray

_ray_put, _ray_get = ray.put, ray.get


class Kept:
    """In place of a `ray.ObjectRef`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def keep_objects_here() -> None:
    """Has ``ray.put`` and ``ray.get`` work in a process without Ray; with one they do as always."""
    ray.put, ray.get = _put, _get


def _put(value: Any, **options: Any) -> Any:
    if ray.is_initialized():
        return _ray_put(value, **options)
    # A copy, as Ray makes: IMPALA's learning thread continues changing the weights that it put.
    return Kept(copy.deepcopy(value))


def _get(refs: Any, **options: Any) -> Any:
    if isinstance(refs, Kept):
        return refs.value
    if isinstance(refs, list) and any(isinstance(ref, Kept) for ref in refs):
        return [_get(ref, **options) for ref in refs]
    return _ray_get(refs, **options)
