"""The parameters of an episode: numbers by name, some of which are drawn for each episode.

The environment gets them as ``reset(options=...)``, which Gymnasium, PettingZoo and RLlib share.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_metrics import EpisodeMetrics

Parameters = dict[str, float]
"""Values by name; whole numbers are ints."""


def draw(given: Mapping[str, Any], seed: object) -> Parameters:
    """Returns the parameters of an episode.

    Args:
        given: by name: a number; ``{"low": 1, "high": 3}``, drawn uniformly with both ends, an
            integer if both are; ``{"choice": [1, 4]}``; or ``{"sides": ["left", "right"]}``, an
            integer below the number of sides, see `muxrl.client.adapters.sides.Swapped`.
        seed: of the episode; the same seed draws the same values, independently for each name.
            None: other values each time.
    """
    return {
        name: _one(one, random.Random(None if seed is None else f"{seed}/{name}"))
        if isinstance(one, Mapping)
        else one
        for name, one in given.items()
    }


def _one(given: Mapping[str, Any], rng: random.Random) -> float:
    if "choice" in given:
        return rng.choice(given["choice"])
    if "sides" in given:
        return rng.randrange(len(given["sides"]))
    low, high = given["low"], given["high"]
    if isinstance(low, int) and isinstance(high, int):
        return rng.randint(low, high)
    return rng.uniform(low, high)


def as_metrics(parameters: Mapping[str, float]) -> EpisodeMetrics:
    """Returns the parameters of an episode as metrics, so that they are recorded with it."""
    return {name: {COMMON: float(value)} for name, value in parameters.items()}
