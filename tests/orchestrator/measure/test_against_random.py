import math
from collections.abc import Sequence

import numpy as np
import pytest

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.against_random import against_random as judge
from muxrl.orchestrator.measure.statistics import (
    Unit,
    difference_interval,
    mean_interval,
    wilson_interval,
)
from muxrl.orchestrator.measure.subjects import Measured

Strata = Sequence[np.ndarray]


def against_random(
    env_steps: int,
    learned: Strata,
    random: Strata | None,
    untrained: Strata | None = None,
    *,
    unit: Unit = Unit.EPISODES,
    shares_resets: bool = True,
) -> AgainstRandom:
    """Judges the returns of each seed in its episodes, which differ from those of other seeds."""
    conditions = {"": learned, "it": random, "it:untrained": untrained}
    return judge(
        [
            Measured(
                env_steps,
                seed if shares_resets else None,
                {who: found[seed] for who, found in conditions.items() if found is not None},
                "it",
            )
            for seed in range(len(learned))
        ],
        unit,
    )


def test_the_verdict_follows_the_interval() -> None:
    high, low = np.array([5.0, 6.0, 7.0, 6.0]), np.array([1.0, 2.0, 1.0, 2.0])
    better = against_random(100, [high], [low])
    assert better.advantage is not None
    assert better.advantage.mean == pytest.approx(4.5)
    assert better.verdict is Verdict.BETTER
    assert against_random(100, [low], [high]).verdict is Verdict.WORSE
    assert (
        against_random(100, [low], [low + np.array([0.1, -0.1, 0, 0])]).verdict is Verdict.UNCLEAR
    )


def test_equal_constants_and_single_episodes_are_not_distinguishable() -> None:
    assert (
        against_random(0, [np.array([8.0, 8.0])], [np.array([8.0, 8.0])]).verdict is Verdict.UNCLEAR
    )
    assert against_random(0, [np.array([8.0])], [np.array([1.0])]).verdict is Verdict.UNCLEAR


def test_without_random_there_is_no_verdict() -> None:
    comparison = against_random(0, [np.array([1.0, 2.0])], None)
    assert comparison.verdict is None
    assert comparison.random is None
    assert (comparison.num_episodes, comparison.num_random_episodes) == (2, 0)


@pytest.mark.parametrize(("shares_resets", "mean"), [(True, -1.5), (False, 1.5)])
def test_only_episodes_of_the_same_resets_are_pairs(shares_resets: bool, mean: float) -> None:
    learned, random = np.array([4.0, -2.0]), np.array([np.nan, -0.5])
    found = against_random(0, [learned], [random], shares_resets=shares_resets).advantage
    assert found is not None
    assert found.mean == pytest.approx(mean)


def test_seeds_that_disagree_widen_only_the_interval_over_seeds() -> None:
    learned = [np.array([1.0, 1.1]), np.array([30.0, 30.1]), np.array([2.0, 2.1])]
    random = [np.array([2.0, 2.1]), np.array([0.0, 0.1]), np.array([1.0, 1.1])]
    these, any_seed = (
        against_random(1, learned, random),
        against_random(1, learned, random, unit=Unit.SEEDS),
    )
    assert these.num_seeds_above == 2
    assert these.verdict is Verdict.BETTER
    assert any_seed.verdict is Verdict.UNCLEAR
    assert these.advantage is not None
    assert any_seed.advantage is not None
    assert these.advantage.mean == pytest.approx(any_seed.advantage.mean) == pytest.approx(10.0)


def test_episodes_of_the_same_seeds_are_paired() -> None:
    """Episodes differ by far more than what learning brings, and it brings that in each of them."""
    random = np.random.default_rng(0).normal(size=60)
    comparison = against_random(100, [random + 0.2], [random])
    assert comparison.advantage is not None
    found = (comparison.advantage.mean, comparison.advantage.low, comparison.advantage.high)
    assert found == pytest.approx((0.2, 0.2, 0.2))
    assert comparison.verdict is Verdict.BETTER


def test_the_advantage_of_pairs_is_their_mean_difference_with_its_interval() -> None:
    learned = [np.array([3.0, 5.0, 9.0]), np.array([1.0, 2.0])]
    random = [np.array([1.0, 4.0, 5.0]), np.array([1.0, 0.0])]
    comparison = against_random(100, learned, random)
    assert comparison.advantage == mean_interval([[2.0, 1.0, 4.0], [0.0, 2.0]])


def test_a_pair_with_an_episode_in_which_nobody_was_is_left_out() -> None:
    learned = [np.array([3.0, math.nan, 9.0, 4.0])]
    random = [np.array([1.0, 4.0, 5.0, math.nan])]
    comparison = against_random(100, learned, random)
    assert comparison.advantage == mean_interval([[2.0, 4.0]])
    assert (comparison.num_episodes, comparison.num_random_episodes) == (3, 3)
    assert comparison.learned == mean_interval([[3.0, 9.0, 4.0]])


def test_conditions_of_unlike_length_are_two_samples() -> None:
    learned = [np.array([3.0, 5.0, 9.0]), np.array([1.0, 2.0])]
    random = [np.array([1.0, 4.0]), np.array([1.0, 0.0])]
    advantage = against_random(100, learned, random).advantage
    assert advantage == difference_interval(learned, random)


def test_a_seed_without_a_single_pair_makes_two_samples() -> None:
    learned = [np.array([3.0, math.nan, 5.0, math.nan])]
    random = [np.array([math.nan, 4.0, math.nan, 1.0])]
    advantage = against_random(100, learned, random).advantage
    assert advantage == difference_interval([[3.0, 5.0]], [[4.0, 1.0]])


def test_over_seeds_each_seed_s_advantage_is_that_of_its_pairs() -> None:
    learned = [np.array([3.0, math.nan, 9.0]), np.array([1.0, 2.0, 3.0])]
    random = [np.array([1.0, 40.0, 5.0]), np.array([1.0, 0.0, 1.0])]
    comparison = against_random(100, learned, random, unit=Unit.SEEDS)
    assert comparison.advantage == mean_interval([[3.0, 4.0 / 3.0]])


def test_returns_of_wins_and_losses_alone_are_proportions() -> None:
    won, lost = np.repeat([1.0, 0.0], [3, 17]), np.zeros(20)
    found = against_random(0, [won], [lost])
    assert found.learned == wilson_interval([won])
    assert found.random == wilson_interval([lost])
    assert against_random(0, [lost], [lost]).learned == mean_interval([lost]), "of any scale"
