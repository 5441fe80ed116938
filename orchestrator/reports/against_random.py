"""Learned policies against uniformly random actions in their place, with the same others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from muxrl.orchestrator.reports.rliable import interquartile_mean
from muxrl.orchestrator.reports.statistics import (
    NUM_RESAMPLES,
    Estimate,
    difference_interval,
    mean_interval,
)

Strata = Sequence[NDArray[np.float64]]
"""For each seed, the returns of its episodes, in the order of their resets' seeds; NaN for an
episode that none of the agents was in."""


class Verdict(StrEnum):
    """What the interval of the advantage shows."""

    BETTER = "better than random"
    """The whole interval is above 0."""
    WORSE = "worse"
    """The whole interval is below 0."""
    UNCLEAR = "not distinguishable"
    """The interval contains 0, or there are too few episodes for one."""


@dataclass(frozen=True)
class AgainstRandom:
    """Returns of one server's agents, mean over them, at one point of training."""

    env_steps: float
    """Mean over the seeds."""
    num_episodes: int
    """With all policies as learned, over all seeds; only episodes that the agents were in."""
    learned: Estimate
    learned_interquartile_mean: float
    """Over the episodes of all seeds."""
    num_random_episodes: int
    """With this server's agents at random; 0 if that was not measured."""
    random: Estimate | None
    advantage: Estimate | None
    """`learned` less `random`: where both played the same episodes, the mean over these pairs."""
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
    """Compares the returns of learned policies with those under random actions.

    If both played equally many episodes with each seed, these are the same episodes: an evaluation
    uses the same resets in every condition. The advantage is then the mean difference of paired
    episodes, so that what an episode's reset does to both cancels out. Pairs with a NaN are left
    out. If the numbers of episodes differ, or no pair is left, the advantage is the difference of
    two independent samples.

    Args:
        env_steps: of training, before this comparison.
        learned: for each seed, each episode's return.
        random: the same with random actions, seeds in the same order; None: not measured.
        over_seeds: whether intervals speak of training with any seed, not of these seeds.
        num_resamples: of the bootstrap.

    Raises:
        ValueError: a seed has no episode, or the two do not have the same seeds.
    """
    if random is not None and len(random) != len(learned):
        raise ValueError(f"{len(learned)} seeds as learned against {len(random)} at random")

    is_of_means = over_seeds and len(learned) > 1

    def interval(strata: Strata) -> Estimate:
        return mean_interval(
            [_means(strata)] if is_of_means else strata, num_resamples=num_resamples
        )

    differences = None if random is None else _paired_differences(learned, random)
    learned = _known(learned)
    random = None if random is None else _known(random)
    advantage, num_seeds_above = None, 0
    if random is not None:
        by_seed = _means(differences) if differences else _means(learned) - _means(random)
        num_seeds_above = int((by_seed > 0).sum())
        if is_of_means:
            advantage = mean_interval([by_seed], num_resamples=num_resamples)
        elif differences:
            advantage = mean_interval(differences, num_resamples=num_resamples)
        else:
            advantage = difference_interval(learned, random, num_resamples=num_resamples)
    return AgainstRandom(
        env_steps=env_steps,
        num_episodes=sum(map(len, learned)),
        learned=interval(learned),
        learned_interquartile_mean=interquartile_mean(np.concatenate(learned)),
        num_random_episodes=sum(map(len, random or [])),
        random=None if random is None else interval(random),
        advantage=advantage,
        num_seeds_above=num_seeds_above,
    )


def _paired_differences(learned: Strata, random: Strata) -> Strata | None:
    """For each seed, learned less random by episode; None if episodes cannot be paired."""
    played = list(zip(learned, random, strict=True))
    if any(len(ours) != len(theirs) for ours, theirs in played):
        return None
    differences = _known([ours - theirs for ours, theirs in played])
    return differences if all(map(len, differences)) else None


def _known(strata: Strata) -> Strata:
    return [stratum[~np.isnan(stratum)] for stratum in strata]


def _means(strata: Strata) -> NDArray[np.float64]:
    return np.array([stratum.mean() for stratum in strata])
