import numpy as np
import pytest

from orchestrator.against_random import Verdict, against_random


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


def test_seeds_that_disagree_widen_only_the_interval_over_seeds() -> None:
    learned = [np.array([1.0, 1.1]), np.array([30.0, 30.1]), np.array([2.0, 2.1])]
    random = [np.array([2.0, 2.1]), np.array([0.0, 0.1]), np.array([1.0, 1.1])]
    these, any_seed = (
        against_random(1, learned, random),
        against_random(1, learned, random, over_seeds=True),
    )
    assert these.num_seeds_above == 2
    assert these.verdict is Verdict.BETTER
    assert any_seed.verdict is Verdict.UNCLEAR
    assert these.advantage is not None
    assert any_seed.advantage is not None
    assert these.advantage.mean == pytest.approx(any_seed.advantage.mean) == pytest.approx(10.0)


def test_seeds_must_pair() -> None:
    with pytest.raises(ValueError, match="2 seeds as learned against 1"):
        against_random(0, [np.ones(2), np.ones(2)], [np.ones(2)])
