"""The bounds of bright corner, by who looks and by who guesses."""

from __future__ import annotations

import numpy as np
import pytest
from tests.experiments.playing import mean_return

from muxrl.experiments.simulations.bright_corner import (
    BrightCorner,
    oracle_return,
    random_return,
)


def brightest(image: np.ndarray) -> int:
    half = len(image) // 2
    quarters = image.reshape(2, half, 2, half).astype(float)
    return int(quarters.mean(axis=(1, 3)).argmax())


def test_who_sees_the_corner_earns_all_and_who_guesses_a_quarter() -> None:
    assert mean_return(BrightCorner(84), lambda _, image: brightest(image), 20) == oracle_return()
    rng = np.random.default_rng(0)
    guessed = mean_return(BrightCorner(10), lambda _, image: int(rng.integers(4)), 400)
    assert guessed == pytest.approx(random_return(), abs=0.3)


def test_an_image_without_quarters_is_refused() -> None:
    with pytest.raises(ValueError, match="size=85 has no quarters"):
        BrightCorner(85)
