"""The bounds of bright corner, by who looks and by who guesses."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest

from muxrl.experiments.simulations.bright_corner import (
    BrightCorner,
    oracle_return,
    random_return,
)


def brightest(image: np.ndarray) -> int:
    half = len(image) // 2
    quarters = image.reshape(2, half, 2, half).astype(float)
    return int(quarters.mean(axis=(1, 3)).argmax())


def played(choose: Callable[[np.ndarray], int], size: int, episodes: int) -> float:
    env, returns = BrightCorner(size), []
    for seed in range(episodes):
        image, _ = env.reset(seed=seed)
        is_over, total = False, 0.0
        while not is_over:
            image, reward, is_over, _, _ = env.step(choose(image))
            total += reward
        returns.append(total)
    return fmean(returns)


def test_who_sees_the_corner_earns_all_and_who_guesses_a_quarter() -> None:
    assert played(brightest, 84, 20) == oracle_return()
    rng = np.random.default_rng(0)
    guessed = played(lambda image: int(rng.integers(4)), 10, 400)
    assert guessed == pytest.approx(random_return(), abs=0.3)


def test_an_image_without_quarters_is_refused() -> None:
    with pytest.raises(ValueError, match="size=85 has no quarters"):
        BrightCorner(85)
