"""Whether a learner fell below its own beginning, as worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike
from tests.orchestrator.measure.test_against_random import against_random

from muxrl.orchestrator.measure.against_random import AgainstRandom
from muxrl.orchestrator.measure.run_notes import find_fall
from muxrl.orchestrator.records.recorded_run import TrainingCurve


def point(env_steps: int, returns: ArrayLike) -> AgainstRandom:
    return against_random(env_steps, [np.asarray(returns, float)], None)


def training(returns: ArrayLike) -> TrainingCurve:
    values = np.asarray(returns, float)
    return TrainingCurve(np.arange(len(values), dtype=float), values)


FIRST = point(0, [-1.0, 1.0] * 20)


@pytest.mark.parametrize(
    ("last", "fell"),
    [([-6.0, -4.0] * 20, True), ([-1.2, 0.9] * 20, False), ([4.0, 6.0] * 20, False)],
)
def test_two_evaluations_decide_whether_a_learner_fell(last: list[float], fell: bool) -> None:
    final = point(9_000, last)
    falling = [training(np.linspace(9, 0, 40))]
    found = find_fall([FIRST, point(5_000, [7.0, 8.0]), final], final, falling)
    assert bool(found) == fell
    if fell:
        assert found.startswith("evaluated at −5.00 [")
        assert " after 9,000 env steps, but at " in found


def test_one_evaluation_decides_nothing() -> None:
    assert find_fall([FIRST], FIRST, []) == ""
    falling = [training(np.linspace(9, 0, 40))]
    assert find_fall([FIRST], FIRST, falling).startswith("train return ")


NOISE = np.random.default_rng(0).normal(size=400)


@pytest.mark.parametrize(
    ("returns", "fell"),
    [
        pytest.param(np.linspace(10, 0, 40), True, id="slowly"),
        pytest.param(np.repeat([10.0, 0.0], 20), True, id="at once"),
        pytest.param(np.repeat([10.0, 0.0], 200) + NOISE, True, id="at once, with noise"),
        pytest.param(NOISE, False, id="noise"),
        pytest.param(np.linspace(0, 10, 40), False, id="it rises"),
        pytest.param(np.concatenate([np.linspace(5, 0, 20), np.linspace(0, 5, 20)]), False,
                     id="it comes back"),
        pytest.param(np.zeros(40), False, id="nothing changes"),
        pytest.param([9.0, 5.0, 1.0], False, id="too few records"),
        pytest.param([], False, id="none"),
    ],
)  # fmt: skip
def test_training_returns_have_to_fall_by_more_than_their_noise(
    returns: ArrayLike, fell: bool
) -> None:
    assert bool(find_fall([], None, [training(returns)])) == fell


def test_a_learner_fell_only_if_it_did_in_every_seed() -> None:
    falling, rising = training(np.linspace(9, 0, 40)), training(np.linspace(0, 9, 40))
    found = find_fall([], None, [falling, falling])
    assert found == "train return 0.35 in the last tenth of its iterations, 8.65 in the first"
    assert find_fall([], None, [falling, rising]) == ""


def test_noise_alone_is_hardly_ever_taken_for_a_fall() -> None:
    rng = np.random.default_rng(1)
    found = [find_fall([], None, [training(rng.normal(size=100))]) for _ in range(1_000)]
    assert sum(map(bool, found)) < 30
