"""What an environment is told of its next episode: numbers by name, some drawn for each episode.

They reach it as ``reset(options=...)``, the one door that Gymnasium, PettingZoo and RLlib share.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_metrics import EpisodeMetrics

Parameters = dict[str, float]
"""By name; whole numbers are ints."""


def draw(given: Mapping[str, Any], seed: object) -> Parameters:
    """Returns the parameters of an episode.

    Args:
        given: by name a number, ``{"low": 1, "high": 3}`` (uniform, with both ends; of integers if
            both are), ``{"choice": [1, 4]}``, or ``{"sides": ["left", "right"]}``: a number below
            theirs, see `muxrl.client.adapters.sides.Swapped`.
        seed: of the episode; the same one draws the same values, of each name independently. None:
            others each time.
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
    """Returns the parameters of an episode as metrics of it, so that they are recorded with it."""
    return {name: {COMMON: float(value)} for name, value in parameters.items()}
