"""What a report is made of, as values: sections, their tables, and what stands in a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muxrl.orchestrator.comparisons.figures import Picture, Style
from muxrl.orchestrator.reports.number_text import MISSING
from muxrl.orchestrator.reports.statistics import Estimate


@dataclass(frozen=True)
class Heading:
    """Of a column; text is set to the left, numbers to the right."""

    text: str
    is_text: bool = False


@dataclass(frozen=True)
class Cell:
    """What stands in a table: its text, what it is sorted by, and where it comes from."""

    text: str
    value: float | None = None
    about: str = ""
    href: str = ""
    css: str = ""
    shade: str = ""


@dataclass(frozen=True)
class TableRow:
    """Cells, and the id that links lead to."""

    cells: tuple[Cell, ...]
    id: str = ""
    is_baseline: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its caption; a folded one is opened by a click."""

    id: str
    title: str
    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[TableRow, ...]
    is_folded: bool = False


@dataclass(frozen=True)
class KeyEntry:
    """How one name is drawn in a section's figures."""

    name: str
    colour: str
    css: str


@dataclass(frozen=True)
class Section:
    """Paragraphs, figures with their key, then tables; empty parts are left out."""

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    key: tuple[KeyEntry, ...] = ()
    figures: tuple[Picture, ...] = ()
    figure_caption: str = ""
    tables: tuple[Table, ...] = ()


def key_of(names: Sequence[str], styles: Mapping[str, Style]) -> tuple[KeyEntry, ...]:
    """The key of figures: how each name is drawn."""
    return tuple(KeyEntry(name, styles[name].colour, styles[name].css) for name in names)


def finite(value: float | None) -> float | None:
    """The value as a table is sorted by it: None for what is no number."""
    return None if value is None or not math.isfinite(value) else value


def count(value: int) -> Cell:
    """A cell with a whole number."""
    return Cell(str(value), value)


def whole(value: float | None) -> str:
    """A number without decimals."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def probability(estimate: Estimate) -> str:
    """A probability with its interval."""
    if not math.isfinite(estimate.low):
        return f"{estimate.mean:.2f} [{MISSING}]"
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def shade(part: float) -> str:
    """A background between orange (-1), white (0) and blue (1), pale enough for black text."""
    if not math.isfinite(part):
        return ""
    part = max(-1.0, min(1.0, part))
    end = (0, 114, 178) if part > 0 else (213, 94, 0)
    return f"rgba({end[0]}, {end[1]}, {end[2]}, {abs(part) * 0.35:.2f})"
