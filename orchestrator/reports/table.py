"""Lays rows out as grids of cells; columns are declared once, by name.

A row is a mapping, such as one of a frame. `plain_table.grid_table` shows a grid on the terminal,
``templates/table.html`` on a page, and `markdown` in Markdown. The heading of a column with
intervals says what they are over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.measure.number_text import MISSING, interval_lines, number, unit_heading
from muxrl.orchestrator.measure.statistics import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

Row = Mapping[str, Any]
"""By column: the value. Two keys are of the row itself: ``id``, the target of links, and
``is_baseline``."""
Shown = str | tuple[str, ...]
"""A text, or the lines of a text."""
Names = str | Iterable[str]
"""Names of columns; in a single text they are separated by spaces."""
_TEXT = {"text", "wrap"}
_MAX_LINES = 5  # most lines of a stacked cell; pages and Markdown show all
_MAX_LINE = 40  # most characters in one line of a page: longer text pushes numbers out of view
_SPECIAL = re.compile(r"([|_*])")


@dataclass(frozen=True)
class Cell:
    """A cell of a grid.

    Attributes:
        lines: lines of text; they are joined to one line, except on the terminal.
        gap: is put between joined lines.
        value: the number that rows are sorted by; None for text and for unknown numbers.
        link: anchor on the page, or the path of a folder.
        css: CSS class of the cell.
        background: CSS colour.
        mark: is put after the text on the page, whose caption explains it.
        style: rich's style of the text on the terminal.
        below: cells of the same row that are shown below this one on the terminal; see `stacked`.
    """

    lines: tuple[str, ...]
    value: float | None = None
    link: str | Path = ""
    css: str = ""
    background: str = ""
    mark: str = ""
    style: str = ""
    gap: str = " "
    below: tuple[Cell, ...] = ()

    @property
    def text(self) -> str:
        """The text of the cell in one line."""
        return self.gap.join(self.lines)


@dataclass(frozen=True)
class Heading:
    """The heading of a column; text is aligned left, numbers right."""

    name: str
    """Name of the column."""
    lines: str
    """Text of the heading, with line breaks for the terminal."""
    is_text: bool = False
    is_whole: bool = False
    """Whether text is never folded on the terminal."""

    @property
    def text(self) -> str:
        """The heading in one line."""
        return self.lines.replace("\n", " ")


@dataclass(frozen=True)
class GridRow:
    """A row of at most as many cells as the grid has columns, and the id that links lead to."""

    cells: tuple[Cell, ...]
    id: str = ""
    is_baseline: bool = False
    begins_section: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: headings and rows of cells."""

    headings: tuple[Heading, ...]
    rows: tuple[GridRow, ...]

    def __add__(self, other: Grid) -> Grid:
        """Returns a grid with the rows of both; those of `other` begin a new section."""
        begin = (replace(row, begins_section=True) for row in other.rows[:1])
        return Grid(self.headings, (*self.rows, *begin, *other.rows[1:]))


@dataclass(frozen=True)
class Column:
    """How the values of a column are shown.

    Attributes:
        heading: text of the heading, with line breaks for the terminal; "": the column's name.
        shown: converts a value to text, or lines; None: by the type of the value.
        cell: returns attributes of a row's `Cell` that do not follow from its value.
        css: CSS classes: "text" is aligned left, "wrap" is long text, "words" may continue in a
            second line between words; "": "text" if the value is a text, "wrap" if it is long.
        gap: as in `Cell`.
        is_whole: whether text is never folded on the terminal.
        over: what the column's intervals are over; "": as for the grid.
    """

    heading: str = ""
    shown: Callable[[Any], Shown] | None = None
    cell: Callable[[Row], Mapping[str, Any]] | None = None
    css: str = ""
    gap: str = " "
    is_whole: bool = False
    over: str = ""

    def of(self, row: Row, name: str) -> Cell:
        """Returns the cell of this column in a row; `name` is the column's."""
        value = row.get(name)
        lines = MISSING if value is None else (self.shown or _shown)(value)
        found = Cell(
            (lines,) if isinstance(lines, str) else lines,
            None if lines == MISSING else _sorted_by(value),
            value if isinstance(value, Path) else "",
            self.css or _css(value),
            gap=self.gap,
        )
        return replace(found, **self.cell(row)) if self.cell else found


Columns = Mapping[str, Column | str]
"""By name: how the column is shown; a text is its heading alone."""
_PLAIN: Columns = MappingProxyType({})


def grid(
    rows: DataFrame | Iterable[Row], names: Names, columns: Columns = _PLAIN, over: str = ""
) -> Grid:
    """Returns a grid of some columns of rows.

    Args:
        rows: a frame, or mappings.
        names: names of the columns.
        columns: how columns are shown; others are shown by their name and the type of the value.
        over: what intervals are over.
    """
    every = _records(rows)
    return _of_columns([(n, c, every) for n, c in _named(names, columns)], every, over)


def _of_columns(
    columns: Iterable[tuple[str, Column, Sequence[Row | None]]], rows: Sequence[Row], over: str
) -> Grid:
    """Returns a grid of columns, given as name, column, and for each cell its row or None."""
    headings, cells = [], []
    for name, column, theirs in columns:
        found = [column.of(row, name) if row else Cell((MISSING,)) for row in theirs]
        values = [row.get(name) for row in theirs if row]
        lines = _heading(column.heading or name, column, values, over)
        is_text = any(not _TEXT.isdisjoint(cell.css.split()) for cell in found[:1])
        headings.append(Heading(name, lines, is_text, column.is_whole))
        cells.append(found)
    return Grid(tuple(headings), tuple(map(_row, zip(*cells, strict=True), rows)))


def stacked(whole: Grid, stacks: Iterable[str], brief: str = "") -> Grid:
    """Returns a grid for the terminal, in which some columns are shown below others.

    Args:
        whole: the grid with all columns.
        stacks: of each stack: names of columns, separated by spaces; absent columns are left out.
        brief: columns whose intervals are left out: only the page and Markdown have room for them.
    """
    place = {heading.name: place for place, heading in enumerate(whole.headings)}
    places = [[place[name] for name in names.split() if name in place] for names in stacks]

    def shortened(cell: Cell, heading: Heading) -> Cell:
        lines = cell.lines[:1] if heading.name in brief.split() else cell.lines
        if len(lines) > _MAX_LINES:
            lines = (*lines[: _MAX_LINES - 1], f"and {len(lines) - _MAX_LINES + 1} more")
        return replace(cell, lines=lines)

    def heading(of_stack: Sequence[int]) -> Heading:
        every = [whole.headings[i] for i in of_stack]
        lines = (h.lines.partition("\n[")[0] if h.name in brief.split() else h.lines for h in every)
        return replace(every[0], lines="\n".join(lines))

    rows = (
        [[shortened(row.cells[i], whole.headings[i]) for i in of_stack] for of_stack in places]
        for row in whole.rows
    )
    return Grid(
        tuple(map(heading, places)),
        tuple(
            GridRow(tuple(replace(first, below=tuple(rest)) for first, *rest in row))
            for row in rows
        ),
    )


def spread(
    rows: DataFrame | Iterable[Row],
    first: Names,
    across: str,
    places: Mapping[Any, str],
    shown: str,
    last: Names = (),
    columns: Columns = _PLAIN,
    over: str = "",
) -> Grid:
    """Returns a pivoted grid: the values of one column become columns.

    Args:
        rows: a frame, or mappings.
        first: columns at the left; rows that are equal in all of them become one row.
        across: the column whose values become columns.
        places: value of `across` to heading, in order; rows with other values are left out.
        shown: the column whose values are shown in the new columns; absent ones are `MISSING`.
        last: columns at the right, taken from the first of the rows that become one.
        columns, over: as for `grid`.
    """
    left, ((_, column),) = _named(first, columns), _named([shown], columns)
    groups: dict[tuple[Any, ...], dict[Any, Row]] = {}
    for row in _records(rows):
        if row[across] in places:
            groups.setdefault(tuple(row[name] for name, _ in left), {})[row[across]] = row
    first_rows = [next(iter(group.values())) for group in groups.values()]
    parts: list[tuple[str, Column, Sequence[Row | None]]] = [
        *((n, c, first_rows) for n, c in left),
        *(
            (shown, replace(column, heading=text), [group.get(at) for group in groups.values()])
            for at, text in places.items()
        ),
        *((n, c, first_rows) for n, c in _named(last, columns)),
    ]
    return _of_columns(parts, first_rows, over)


def markdown(grid: Grid) -> str:
    """Returns a grid as a Markdown table."""
    rules = ("---" if heading.is_text else "---:" for heading in grid.headings)
    return "\n".join(
        [
            _line(heading.text for heading in grid.headings),
            f"|{'|'.join(rules)}|",
            *(_line(_SPECIAL.sub(r"\\\1", cell.text) for cell in row.cells) for row in grid.rows),
        ]
    )


def _named(names: Names, columns: Columns) -> list[tuple[str, Column]]:
    given = names.split() if isinstance(names, str) else names
    found = ((name, columns.get(name, "")) for name in given)
    return [(name, Column(one) if isinstance(one, str) else one) for name, one in found]


def _heading(text: str, column: Column, values: Iterable[Any], over: str) -> str:
    is_shown = (column.over or over) and any(isinstance(value, Estimate) for value in values)
    return f"{text}\n{unit_heading(column.over or over)}" if is_shown else text


def _records(rows: DataFrame | Iterable[Row]) -> list[Row]:
    return list(rows.to_dict("records") if hasattr(rows, "to_dict") else rows)


def _row(cells: tuple[Cell, ...], row: Row) -> GridRow:
    return GridRow(cells, row.get("id") or "", bool(row.get("is_baseline")))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: Any) -> Shown:
    if isinstance(value, Estimate):
        return interval_lines(value)
    if isinstance(value, float):
        return number(value)
    return value.name if isinstance(value, Path) else str(value) or MISSING


def _css(value: Any) -> str:
    if not isinstance(value, str | Path):
        return ""
    return "wrap" if len(_shown(value)) > _MAX_LINE else "text"


def _sorted_by(value: Any) -> float | None:
    if isinstance(value, Estimate):
        value = value.mean
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number else None
