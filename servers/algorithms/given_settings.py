"""The arguments of an RLlib config's `training()` that were given."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided


def set_given(config: AlgorithmConfig, **settings: Any) -> None:
    """Sets each of these on the config, unless it is `NotProvided`."""
    for name, value in settings.items():
        if value is not NotProvided:
            setattr(config, name, value)
