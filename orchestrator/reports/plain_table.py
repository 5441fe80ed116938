"""Tables of returns as text: how numbers are rounded, and how all tables look."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # it takes SciPy, which tables without intervals need not wait for
    from muxrl.orchestrator.reports.statistics import Estimate

MISSING = "–"
"""Stands for an unknown number."""


def plain_table(title: str, caption: str = "") -> Table:
    """Returns an empty table; brackets in its title and caption are not markup."""
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=Text(caption) if caption else None,
        caption_justify="left",
    )


def number(value: float | None) -> str:
    """Two decimals below 100, one below 10,000, none above; `MISSING` for None and NaN."""
    if value is None or math.isnan(value):
        return MISSING
    digits = 2 if abs(value) < 100 else 1 if abs(value) < 10_000 else 0
    return f"{value:,.{digits}f}".replace("-", "−")


def interval(estimate: Estimate) -> str:
    """A mean with its interval: ``3.10 [2.00, 4.20]``."""
    if math.isnan(estimate.low):
        return f"{number(estimate.mean)} [{MISSING}]"
    return f"{number(estimate.mean)} [{number(estimate.low)}, {number(estimate.high)}]"


def signed_interval(estimate: Estimate) -> str:
    """A difference with its interval: ``+3.10 [2.00, 4.20]``."""
    return ("+" if estimate.mean > 0 else "") + interval(estimate)
