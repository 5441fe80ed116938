import math

import pytest

from muxrl.orchestrator.measure.number_text import interval, number
from muxrl.orchestrator.measure.statistics import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (7, "7.00"),
        (-126.64, "−126.6"),
        (12_345.6, "12,346"),
        (-0.001, "0.00"),
    ],
)
def test_numbers_have_the_digits_a_reader_can_use(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_difference_shows_its_sign() -> None:
    assert interval(Estimate(3.1, -2.0, 4.2), "seeds", "+") == "+3.10 [−2.00, 4.20] over seeds"
    assert interval(Estimate(-3.1, math.nan, math.nan), "seeds", "+") == "−3.10 [–] over seeds"
