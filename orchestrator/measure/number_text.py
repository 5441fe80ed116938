"""How numbers and intervals are written: in tables, in sentences, on pages."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from muxrl.orchestrator.measure.rounding import NOISE, is_wide

if TYPE_CHECKING:  # it takes SciPy, which tables without intervals need not wait for
    from muxrl.orchestrator.measure.statistics import Estimate

MISSING = "–"
"""Stands for an unknown number."""

_MOST_DIGITS = 6


def number(value: float | None, digits: int | None = None) -> str:
    """Two decimals below 100, one below 10,000, none above, if `digits` does not say how many, but
    three significant digits where that would show 0; `MISSING` for None and NaN."""
    if value is None or math.isnan(value):
        return MISSING
    return _fixed(value, digits) if digits is not None else _visible(value, _usual_digits(value))


def _fixed(value: float, digits: int) -> str:
    return f"{value:z,.{digits}f}".replace("-", "−")


def _visible(value: float, digits: int) -> str:
    if abs(value) > NOISE and round(value, digits) == 0:
        return f"{value:.3g}".replace("-", "−")
    return _fixed(value, digits)


def _usual_digits(value: float) -> int:
    return 2 if abs(value) < 100 else 1 if abs(value) < 10_000 else 0


def _digits_of_width(estimate: Estimate) -> int:
    """How many decimals tell the ends of an interval apart; 0 if they are the same."""
    width = estimate.high - estimate.low
    largest = max(map(abs, (estimate.mean, estimate.low, estimate.high)))
    if not (math.isfinite(width) and is_wide(width, largest)):
        return 0
    return min(_MOST_DIGITS, math.ceil(-math.log10(width)))


def whole(value: float) -> str:
    """A number without decimals; `MISSING` for NaN."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def interval_lines(
    estimate: Estimate, sign: str = "", digits: int | None = None
) -> tuple[str, str]:
    """A mean and the interval that stands behind it, or below it where room is narrow.

    Args:
        estimate: both; what the interval is over stands in the heading, see `unit_heading`.
        sign: before a mean above 0.
        digits: as for `number`; None: as many more as a narrow interval needs.
    """
    sign = sign if estimate.mean > 0 else ""
    if math.isnan(estimate.low):
        return sign + number(estimate.mean, digits), f"[{MISSING}]"
    least = _digits_of_width(estimate)

    def written(value: float, *, is_visible: bool = True) -> str:
        shown = _visible if is_visible and digits is None else _fixed
        return shown(value, max(_usual_digits(value), least) if digits is None else digits)

    # Where 0 is inside, the mean may as well be 0; an end has to show on which side it is.
    mean = written(estimate.mean, is_visible=not estimate.low < 0 < estimate.high)
    return sign + mean, f"[{written(estimate.low)}, {written(estimate.high)}]"


signed_lines = partial(interval_lines, sign="+")
"""The same of a difference."""


def unit_heading(over: str) -> str:
    """Returns what the intervals of a column are over, for its heading."""
    return f"[95 %,\n{over}]"


def interval(estimate: Estimate, over: str, sign: str = "", digits: int | None = None) -> str:
    """A mean with its interval and what that is over: ``+3.10 [2.00, 4.20] over seeds``."""
    return f"{' '.join(interval_lines(estimate, sign, digits))} over {over}"
