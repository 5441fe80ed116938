"""Compares learned policies with uniformly random actions in their place; the others stay.

It also compares them with the policies that they began as: a policy that has learned nothing may
be better than random only because it acts by one rule throughout an episode, or greedily.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from muxrl.orchestrator.measure.rliable import interquartile_mean
from muxrl.orchestrator.measure.statistics import (
    NO_VARIANCE,
    Estimate,
    Floats,
    Unit,
    are_won_or_lost,
    difference_interval,
    estimate_of,
    mean_interval,
    shared_variance,
)
from muxrl.orchestrator.measure.subjects import Measured

Strata = Sequence[Floats]
"""For each seed: the returns of its episodes, in the order of the resets' seeds; NaN for an episode
without any of the agents."""


class Verdict(StrEnum):
    """What the interval of the advantage over random actions shows."""

    BETTER = "better than random"
    """The whole interval is above 0; untrained policies were not measured, or how far these are
    above them is not known: a few equal numbers have no interval."""
    BETTER_THAN_BOTH = "better than random and untrained"
    """The intervals of the advantages over random and over untrained policies are above 0."""
    NOT_THAN_UNTRAINED = "better than random, not than untrained"
    """Better than random, but the advantage over the untrained policies may be 0 or below: whatever
    makes these policies better than random may have been there before training."""
    NOT_ALL_UPDATED = "better than random, but some seeds made no update"
    """The intervals of the advantages over random and (if measured) untrained policies are above 0,
    but in some seeds the policies are themselves untrained."""
    WORSE = "worse"
    """The whole interval is below 0."""
    UNCLEAR = "not distinguishable"
    """The interval contains 0, or there is none: there are too few episodes or seeds, or a few that
    are all equal."""


@dataclass(frozen=True)
class AgainstRandom:
    """Mean returns of one server's agents at one point of training, and how random ones compare."""

    env_steps: float
    """Env steps of training before the evaluation, mean over the seeds."""
    unit: Unit
    """What intervals are over."""
    num_episodes: int
    """Episodes of all seeds with all policies as learned, in which the agents took part."""
    learned: Estimate
    learned_interquartile_mean: float
    """The interquartile mean over the episodes of all seeds."""
    num_random_episodes: int
    """Episodes with this server's agents at random; 0: not measured."""
    random: Estimate | None
    advantage: Estimate | None
    """`learned` less `random`; if both played the same episodes, the mean over these pairs."""
    num_seeds_above: int
    """Number of seeds whose advantage is above 0."""
    num_seeds_below: int
    """Number of seeds whose advantage is below 0."""
    num_untrained_episodes: int = 0
    """Episodes with this server's agents untrained; 0: not measured."""
    untrained: Estimate | None = None
    over_untrained: Estimate | None = None
    """`learned` less `untrained`, computed as `advantage` is."""
    num_seeds_without_update: int = 0
    """Number of seeds in which the server made no update, so that its policies are untrained."""

    @property
    def verdict(self) -> Verdict | None:
        """What the advantage shows; None if random was not measured."""
        if self.advantage is None:
            return None
        if self.advantage.low > 0:
            over = self.over_untrained
            is_known = over is not None and not (math.isnan(over.low) and over.mean > 0)
            if over is not None and is_known and not over.low > 0:
                return Verdict.NOT_THAN_UNTRAINED
            if self.num_seeds_without_update:
                return Verdict.NOT_ALL_UPDATED
            return Verdict.BETTER_THAN_BOTH if is_known else Verdict.BETTER
        return Verdict.WORSE if self.advantage.high < 0 else Verdict.UNCLEAR


def against_random(
    points: Sequence[Measured],
    unit: Unit = Unit.EPISODES,
    *,
    is_proportion: bool | None = None,
    num_without_update: int = 0,
) -> AgainstRandom:
    """Compares the returns of learned policies with those under random actions.

    If both conditions have equally many episodes for each seed, these are the same episodes: an
    evaluation uses the same resets in every condition, unless an external simulation plays it. The
    advantage is then the mean difference of paired episodes, so that the effect of a reset on both
    cancels out. Pairs with a NaN are left out. If the numbers of episodes differ, or no pair is
    left, the advantage is the difference of two independent samples.

    Args:
        points: one evaluation of each seed; a condition that one of them lacks is left out.
        unit: what intervals are over.
        is_proportion: whether each number is 0 or 1; None: find out from the returns.
        num_without_update: number of seeds in which the server made no update.
    """
    shares_resets = all(point.first_seed is not None for point in points)
    are_shared = share_episodes(point.first_seed for point in points)
    learned = [point.learned for point in points]
    random = _of_all([point.random for point in points])
    untrained = _of_all([point.untrained for point in points])
    if is_proportion is None:
        is_proportion = are_won_or_lost([*learned, *(random or ()), *(untrained or ())])

    def interval(strata: Strata, *, is_proportion: bool = is_proportion) -> Estimate:
        return estimate_of(strata, unit, share_episodes=are_shared, is_proportion=is_proportion)

    def compare(others: Strata) -> tuple[Estimate, Floats]:
        """Returns the advantage over `others`, and the advantage of each seed."""
        if pairs := _paired_differences(learned, others) if shares_resets else None:
            return interval(pairs, is_proportion=False), _means(pairs)
        by_seed = _means(learned) - _means(others)
        if unit is Unit.SEEDS:
            shared = (
                shared_variance(learned) + shared_variance(others) if are_shared else NO_VARIANCE
            )
            return mean_interval([by_seed], shared), by_seed
        return difference_interval(_known(learned), _known(others)), by_seed

    advantage, by_seed = compare(random) if random is not None else (None, np.empty(0))
    over_untrained = compare(untrained)[0] if untrained is not None else None
    played = _known(learned)
    return AgainstRandom(
        env_steps=float(np.mean([point.env_steps for point in points])),
        unit=unit,
        num_episodes=sum(map(len, played)),
        learned=interval(learned),
        learned_interquartile_mean=interquartile_mean(np.concatenate(played)),
        num_random_episodes=sum(map(len, _known(random or []))),
        random=None if random is None else interval(random),
        advantage=advantage,
        num_seeds_above=int((by_seed > 0).sum()),
        num_seeds_below=int((by_seed < 0).sum()),
        num_untrained_episodes=sum(map(len, _known(untrained or []))),
        untrained=None if untrained is None else interval(untrained),
        over_untrained=over_untrained,
        num_seeds_without_update=num_without_update,
    )


def share_episodes(first_seeds: Iterable[int | None]) -> bool:
    """Whether any two runs, whose evaluations begin at these seeds, played the same episodes."""
    seeds = list(first_seeds)
    return None not in seeds and len(set(seeds)) < len(seeds)


def _of_all(found: Sequence[Floats | None]) -> Strata | None:
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def _paired_differences(learned: Strata, random: Strata) -> Strata | None:
    """Returns learned less random by episode for each seed; None if episodes cannot be paired."""
    played = list(zip(learned, random, strict=True))
    if any(len(ours) != len(theirs) for ours, theirs in played):
        return None
    differences = [ours - theirs for ours, theirs in played]
    return differences if all(np.isfinite(pairs).any() for pairs in differences) else None


def _known(strata: Strata) -> Strata:
    return [stratum[~np.isnan(stratum)] for stratum in strata]


def _means(strata: Strata) -> Floats:
    return np.array([stratum.mean() for stratum in _known(strata)])
