"""How numbers and intervals are written: in tables, in sentences, on pages."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes SciPy, which tables without intervals need not wait for
    from muxrl.orchestrator.measure.statistics import Estimate

MISSING = "–"
"""Stands for an unknown number."""


def number(value: float | None, digits: int | None = None) -> str:
    """Two decimals below 100, one below 10,000, none above, if `digits` does not say how many;
    `MISSING` for None and NaN."""
    if value is None or math.isnan(value):
        return MISSING
    if digits is None:
        digits = 2 if abs(value) < 100 else 1 if abs(value) < 10_000 else 0
    return f"{value:z,.{digits}f}".replace("-", "−")


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
        digits: as for `number`.
    """
    mean = (sign if estimate.mean > 0 else "") + number(estimate.mean, digits)
    if math.isnan(estimate.low):
        return mean, f"[{MISSING}]"
    return mean, f"[{number(estimate.low, digits)}, {number(estimate.high, digits)}]"


signed_lines = partial(interval_lines, sign="+")
"""The same of a difference."""


def unit_heading(over: str) -> str:
    """Returns what the intervals of a column are over, for its heading."""
    return f"[95 %,\n{over}]"


def interval(estimate: Estimate, over: str, sign: str = "", digits: int | None = None) -> str:
    """A mean with its interval and what that is over: ``+3.10 [2.00, 4.20] over seeds``."""
    return f"{' '.join(interval_lines(estimate, sign, digits))} over {over}"
