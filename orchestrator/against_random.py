"""A learned policy against uniformly random actions in its place, the others being the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from orchestrator.statistics import (
    NUM_RESAMPLES,
    Estimate,
    difference_interval,
    interquartile_mean,
    mean_interval,
)

Strata = Sequence[NDArray[np.float64]]
"""For each seed, the returns of its episodes."""


class Verdict(StrEnum):
    """What the interval of the advantage allows to say."""

    BETTER = "better than random"
    """All of it is above 0."""
    WORSE = "worse"
    """All of it is below 0."""
    UNCLEAR = "not distinguishable"
    """It holds 0, or there are too few episodes for an interval."""


@dataclass(frozen=True)
class AgainstRandom:
    """Returns of one server's agents, mean over them, at one point of training."""

    env_steps: float
    """Mean over the seeds."""
    num_episodes: int
    """With all as learned, over all seeds."""
    learned: Estimate
    learned_interquartile_mean: float
    """Over the episodes of all seeds."""
    num_random_episodes: int
    """With this server's agents at random; 0 if that was not measured."""
    random: Estimate | None
    advantage: Estimate | None
    """`learned` less `random`."""
    num_seeds_above: int
    """Seeds whose own advantage is above 0."""

    @property
    def verdict(self) -> Verdict | None:
        """None where random was not measured."""
        if self.advantage is None:
            return None
        if self.advantage.low > 0:
            return Verdict.BETTER
        return Verdict.WORSE if self.advantage.high < 0 else Verdict.UNCLEAR


def against_random(
    env_steps: float,
    learned: Strata,
    random: Strata | None,
    *,
    over_seeds: bool = False,
    num_resamples: int = NUM_RESAMPLES,
) -> AgainstRandom:
    """Compare the returns of learned policies with those under random actions.

    Args:
        env_steps: of training, before this comparison.
        learned: for each seed, each episode's return.
        random: the same with random actions, seeds in the same order; None: not measured.
        over_seeds: whether the intervals speak of any seed rather than of these.
        num_resamples: of the bootstrap.

    Raises:
        ValueError: a seed has no episode, or the two do not have the same seeds.
    """
    if random is not None and len(random) != len(learned):
        raise ValueError(f"{len(learned)} seeds as learned against {len(random)} at random")

    is_of_means = over_seeds and len(learned) > 1

    def interval(strata: Strata) -> Estimate:
        return mean_interval([_means(strata)] if is_of_means else strata, **settings)

    settings = {"num_resamples": num_resamples}
    advantage = None
    if random is not None and is_of_means:  # of each seed its own difference
        advantage = mean_interval([_means(learned) - _means(random)], **settings)
    elif random is not None:
        advantage = difference_interval(learned, random, **settings)
    return AgainstRandom(
        env_steps=env_steps,
        num_episodes=sum(map(len, learned)),
        learned=interval(learned),
        learned_interquartile_mean=interquartile_mean(np.concatenate(learned)),
        num_random_episodes=sum(map(len, random or [])),
        random=None if random is None else interval(random),
        advantage=advantage,
        num_seeds_above=sum(
            bool(ours.mean() > theirs.mean())
            for ours, theirs in zip(learned, random or [], strict=False)
        ),
    )


def _means(strata: Strata) -> NDArray[np.float64]:
    return np.array([stratum.mean() for stratum in strata])
