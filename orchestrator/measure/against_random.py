"""Learned policies against uniformly random actions in their place, with the same others.

And against the policies that they began as: one that has learned nothing may be better than random
only because it acts by one rule throughout an episode, or greedily.
"""

from __future__ import annotations

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
"""For each seed, the returns of its episodes, in the order of their resets' seeds; NaN for an
episode that none of the agents was in."""


class Verdict(StrEnum):
    """What the interval of the advantage shows."""

    BETTER = "better than random"
    """The whole interval is above 0; untrained policies were not measured."""
    BETTER_THAN_BOTH = "better than random and untrained"
    """And so is that of the advantage over the untrained policies."""
    NOT_THAN_UNTRAINED = "better than random, not than untrained"
    """The advantage over the untrained policies may be 0 or below: what makes these policies better
    than random was there before any training."""
    NOT_ALL_UPDATED = "better than random, but some seeds made no update"
    """And so is that of the advantage over the untrained policies, if these were measured; but of
    some seeds these are untrained policies themselves."""
    WORSE = "worse"
    """The whole interval is below 0."""
    UNCLEAR = "not distinguishable"
    """The interval contains 0, or there is none: too few episodes or seeds, or a few all equal."""


@dataclass(frozen=True)
class AgainstRandom:
    """Returns of one server's agents, mean over them, at one point of training."""

    env_steps: float
    """Mean over the seeds."""
    unit: Unit
    """What intervals are over."""
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
    num_seeds_below: int
    """And below."""
    num_untrained_episodes: int = 0
    """With this server's agents as it began; 0 if that was not measured."""
    untrained: Estimate | None = None
    over_untrained: Estimate | None = None
    """`learned` less `untrained`, as `advantage`."""
    num_seeds_without_update: int = 0
    """Seeds whose learner made no update: there the learned policies are untrained ones."""

    @property
    def verdict(self) -> Verdict | None:
        """None where random was not measured."""
        if self.advantage is None:
            return None
        if self.advantage.low > 0:
            if self.over_untrained is not None and not self.over_untrained.low > 0:
                return Verdict.NOT_THAN_UNTRAINED
            if self.num_seeds_without_update:
                return Verdict.NOT_ALL_UPDATED
            return Verdict.BETTER_THAN_BOTH if self.over_untrained else Verdict.BETTER
        return Verdict.WORSE if self.advantage.high < 0 else Verdict.UNCLEAR


def against_random(
    points: Sequence[Measured],
    unit: Unit = Unit.EPISODES,
    *,
    is_proportion: bool | None = None,
    num_without_update: int = 0,
) -> AgainstRandom:
    """Compares the returns of learned policies with those under random actions.

    If both played equally many episodes with each seed, these are the same episodes: an evaluation
    uses the same resets in every condition, unless somebody else's simulation plays it. The
    advantage is then the mean difference of paired episodes, so that what an episode's reset does
    to both cancels out. Pairs with a NaN are left out. If the numbers of episodes differ, or no
    pair is left, the advantage is the difference of two independent samples.

    Args:
        points: one evaluation of each seed; what one of them did not measure is left out.
        unit: what intervals are over.
        is_proportion: whether each number is 0 or 1; None: if that is seen of returns.
        num_without_update: of the seeds, whose learner made no update.
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
        """Returns the advantage over the others, and each seed's."""
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
    """Returns whether runs whose evaluations begin at these seeds played the same episodes."""
    seeds = list(first_seeds)
    return None not in seeds and len(set(seeds)) < len(seeds)


def _of_all(found: Sequence[Floats | None]) -> Strata | None:
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def _paired_differences(learned: Strata, random: Strata) -> Strata | None:
    """For each seed, learned less random by episode; None if episodes cannot be paired."""
    played = list(zip(learned, random, strict=True))
    if any(len(ours) != len(theirs) for ours, theirs in played):
        return None
    differences = [ours - theirs for ours, theirs in played]
    return differences if all(np.isfinite(pairs).any() for pairs in differences) else None


def _known(strata: Strata) -> Strata:
    return [stratum[~np.isnan(stratum)] for stratum in strata]


def _means(strata: Strata) -> Floats:
    return np.array([stratum.mean() for stratum in _known(strata)])
