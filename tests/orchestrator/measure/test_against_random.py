import math
from collections.abc import Sequence

import numpy as np
import pytest

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.against_random import against_random as judge
from muxrl.orchestrator.measure.statistics import (
    Estimate,
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


LUCK = np.random.default_rng(0).normal(size=30)
"""The luck of episodes varies by far more than what learning adds to each return."""


@pytest.mark.parametrize(
    ("learned", "began", "verdict"),
    [
        (2.0, 1.0, Verdict.BETTER_THAN_BOTH),
        (2.0, None, Verdict.BETTER),
        (2.0, 2.0, Verdict.NOT_THAN_UNTRAINED),
        (2.0, 3.0, Verdict.NOT_THAN_UNTRAINED),
        (0.0, -1.0, Verdict.UNCLEAR),
        (0.0, None, Verdict.UNCLEAR),
        (-1.0, -2.0, Verdict.WORSE),
    ],
)
def test_the_verdict_follows_the_interval_of_pairs(
    learned: float, began: float | None, verdict: Verdict
) -> None:
    untrained = None if began is None else [LUCK + began]
    compared = against_random(100, [LUCK + learned], [LUCK], untrained)
    assert compared.verdict is verdict
    assert ends(compared.advantage) == pytest.approx([learned] * 3)
    assert (compared.num_episodes, compared.num_random_episodes) == (30, 30)
    if compared.over_untrained is None:
        assert (began, compared.untrained, compared.num_untrained_episodes) == (None, None, 0)
    else:
        assert ends(compared.over_untrained) == pytest.approx([learned - (began or 0.0)] * 3)
        assert compared.num_untrained_episodes == 30


@pytest.mark.parametrize(
    ("began", "verdict"),
    [
        (None, Verdict.NOT_ALL_UPDATED),
        (1.0, Verdict.NOT_ALL_UPDATED),
        (2.0, Verdict.NOT_THAN_UNTRAINED),
    ],
)
def test_the_verdict_says_that_some_seed_made_no_update(
    began: float | None, verdict: Verdict
) -> None:
    episodes = {"": LUCK + 2.0, "it": LUCK} | (
        {} if began is None else {"it:untrained": LUCK + began}
    )
    points = [Measured(100, seed, episodes, "it") for seed in range(2)]
    assert judge(points, num_without_update=1).verdict is verdict


@pytest.mark.parametrize(("num", "verdict"), [(5, Verdict.BETTER), (6, Verdict.BETTER_THAN_BOTH)])
def test_a_few_equal_advantages_over_untrained_agents_leave_the_verdict_open(
    num: int, verdict: Verdict
) -> None:
    learned, untrained = np.full(num, 8.0), np.full(num, 6.0)
    assert against_random(100, [learned], [LUCK[:num]], [untrained]).verdict is verdict


def ends(estimate: Estimate) -> list[float]:
    return [estimate.mean, estimate.low, estimate.high]


def test_one_episode_is_unclear_and_without_random_there_is_no_verdict() -> None:
    assert against_random(0, [np.array([8.0])], [np.array([1.0])]).verdict is Verdict.UNCLEAR
    for untrained in (None, [LUCK]):
        compared = against_random(0, [LUCK + 1], None, untrained)
        assert (compared.verdict, compared.random, compared.num_random_episodes) == (None, None, 0)
        assert (compared.over_untrained is None) == (untrained is None)


@pytest.mark.parametrize(("shares_resets", "mean"), [(True, -1.5), (False, 1.5)])
def test_only_episodes_of_the_same_resets_are_pairs(shares_resets: bool, mean: float) -> None:
    learned, random = np.array([4.0, -2.0]), np.array([np.nan, -0.5])
    found = against_random(0, [learned], [random], shares_resets=shares_resets).advantage
    assert found.mean == pytest.approx(mean)


def test_seeds_that_disagree_widen_only_the_interval_over_seeds() -> None:
    learned = [np.array([1.0, 1.1]), np.array([30.0, 30.1]), np.array([2.0, 2.1])]
    random = [np.array([2.0, 2.2]), np.array([0.0, 0.0]), np.array([1.0, 1.1])]
    these, any_seed = (
        against_random(1, learned, random),
        against_random(1, learned, random, unit=Unit.SEEDS),
    )
    assert these.num_seeds_above == 2
    assert these.verdict is Verdict.BETTER
    assert any_seed.verdict is Verdict.UNCLEAR
    assert these.advantage.mean == pytest.approx(any_seed.advantage.mean) == pytest.approx(10.0)


NAN = math.nan


@pytest.mark.parametrize(
    ("learned", "random"),
    [
        ([[3.0, 5.0, 9.0], [1.0, 2.0]], [[1.0, 4.0], [1.0, 0.0]]),
        ([[3.0, NAN, 5.0, NAN]], [[NAN, 4.0, NAN, 1.0]]),
    ],
    ids=["of unlike length", "without a pair"],
)
def test_an_advantage_without_pairs_is_the_difference_of_two_samples(
    learned: list[list[float]], random: list[list[float]]
) -> None:
    found = against_random(100, list(map(np.array, learned)), list(map(np.array, random)))
    ours, theirs = (
        [[value for value in seed if not math.isnan(value)] for seed in seeds]
        for seeds in (learned, random)
    )
    assert found.advantage == difference_interval(ours, theirs)
    assert (found.learned, found.num_episodes) == (mean_interval(ours), sum(map(len, ours)))


def test_returns_of_wins_and_losses_alone_are_proportions() -> None:
    won, lost = np.repeat([1.0, 0.0], [3, 17]), np.zeros(20)
    found = against_random(0, [won], [lost])
    assert found.learned == wilson_interval([won])
    assert found.random == wilson_interval([lost])
    assert against_random(0, [lost], [lost]).learned == mean_interval([lost]), "of any scale"
