"""Formats numbers and intervals for tables, sentences and pages."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from muxrl.orchestrator.measure.rounding import NOISE, is_wide

if TYPE_CHECKING:  # imports SciPy, which is slow and which tables without intervals do not need
    from muxrl.orchestrator.measure.statistics import Estimate

MISSING = "–"
"""Stands for an unknown number."""

_MOST_DIGITS = 6


def number(value: float | None, digits: int | None = None) -> str:
    """Formats a number; None and NaN are `MISSING`.

    It has `digits` decimals. If that is None, it has two decimals below 100, one below 10,000 and
    none above, or three significant digits where it would otherwise show as 0.
    """
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
    """Returns how many decimals tell the ends of an interval apart; 0 if they are the same."""
    width = estimate.high - estimate.low
    largest = max(map(abs, (estimate.mean, estimate.low, estimate.high)))
    if not (math.isfinite(width) and is_wide(width, largest)):
        return 0
    return min(_MOST_DIGITS, math.ceil(-math.log10(width)))


def whole(value: float) -> str:
    """Formats a number without decimals; NaN and infinities are `MISSING`."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def interval_lines(
    estimate: Estimate, sign: str = "", digits: int | None = None
) -> tuple[str, str]:
    """Formats a mean and its interval, which may stand behind it or below it.

    Args:
        estimate: the mean and its interval; what this is over is in the heading, see
            `unit_heading`.
        sign: is put before a mean above 0.
        digits: as for `number`; None: as for `number`, and more if a narrow interval needs them.
    """
    sign = sign if estimate.mean > 0 else ""
    if math.isnan(estimate.low):
        return sign + number(estimate.mean, digits), f"[{MISSING}]"
    least = _digits_of_width(estimate)

    def written(value: float, *, is_visible: bool = True) -> str:
        shown = _visible if is_visible and digits is None else _fixed
        return shown(value, max(_usual_digits(value), least) if digits is None else digits)

    # If 0 is inside, the mean may show as 0; but an end must show on which side of 0 it is.
    mean = written(estimate.mean, is_visible=not estimate.low < 0 < estimate.high)
    return sign + mean, f"[{written(estimate.low)}, {written(estimate.high)}]"


signed_lines = partial(interval_lines, sign="+")
"""Formats a difference and its interval: `interval_lines` with a plus sign."""


def unit_heading(over: str) -> str:
    """Returns the line of a column's heading that says what its intervals are over."""
    return f"[95 %,\n{over}]"


def interval(estimate: Estimate, over: str, sign: str = "", digits: int | None = None) -> str:
    """Formats a mean, its interval, and what this is over: ``+3.10 [2.00, 4.20] over seeds``."""
    return f"{' '.join(interval_lines(estimate, sign, digits))} over {over}"
