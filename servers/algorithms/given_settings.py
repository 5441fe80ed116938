"""The arguments of an RLlib config's `training()` that were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

_NOT_SETTINGS = frozenset({"self", "kwargs", "__class__"})


def set_given(config: AlgorithmConfig, arguments: Mapping[str, Any]) -> None:
    """Sets those of `arguments`, which are the ``locals()`` of `training()`, that were given."""
    for name, value in arguments.items():
        if name not in _NOT_SETTINGS and value is not NotProvided:
            setattr(config, name, value)
