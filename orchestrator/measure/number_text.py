"""How numbers and intervals are written: in tables, in sentences, on pages."""

from __future__ import annotations

import math
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


def signed_lines(estimate: Estimate) -> tuple[str, str]:
    """A difference, and the interval that stands behind it, or below it where room is narrow."""
    return interval_lines(estimate, "+")


def interval_lines(
    estimate: Estimate, sign: str = "", digits: int | None = None
) -> tuple[str, str]:
    """The same of a mean, with a sign if it is above 0."""
    mean = (sign if estimate.mean > 0 else "") + number(estimate.mean, digits)
    if math.isnan(estimate.low):
        return mean, f"[{MISSING}]"
    return mean, f"[{number(estimate.low, digits)}, {number(estimate.high, digits)}]"


def interval(estimate: Estimate) -> str:
    """A mean with its interval: ``3.10 [2.00, 4.20]``."""
    return " ".join(interval_lines(estimate))


def signed_interval(estimate: Estimate) -> str:
    """A difference with its interval: ``+3.10 [2.00, 4.20]``."""
    return " ".join(signed_lines(estimate))
