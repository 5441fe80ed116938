"""A table declared once: its columns say where a value comes from and how it is shown.

From one declaration come plain records (for CSV, JSON and pandas) and grids of cells, either as
they are or with one column spread sideways. `plain_table.grid_table` shows a grid on the terminal,
``templates/table.html`` on a page, and `markdown` in Markdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from muxrl.orchestrator.measure.number_text import MISSING, interval_lines, number
from muxrl.orchestrator.measure.statistics import Estimate

Row = TypeVar("Row")
Shown = str | tuple[str, ...]
"""A text, or its lines."""
Names = str | Iterable[str]
"""Of columns; in one text with spaces between them."""
_TEXT = {"text", "wrap"}
_SPECIAL = re.compile(r"([|_*])")
_AS_DECLARED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a grid.

    Attributes:
        lines: what is read, in one line but on the terminal.
        gap: between the lines, where they are one.
        value: what a number is sorted by; None for text and for unknown numbers.
        tooltip: where the number comes from.
        link: anchor on the page, or the path of a folder.
        css: class of the cell.
        background: CSS colour.
        mark: put after the text on the page, whose caption explains it.
        style: of the text on the terminal, as rich has it.
        below: on the terminal, cells of the same row that stand below it; see `Table.stacked`.
    """

    lines: tuple[str, ...]
    value: float | None = None
    tooltip: str = ""
    link: str | Path = ""
    css: str = ""
    background: str = ""
    mark: str = ""
    style: str = ""
    gap: str = " "
    below: tuple[Cell, ...] = ()

    @property
    def text(self) -> str:
        """What is read, in one line."""
        return self.gap.join(self.lines)


@dataclass(frozen=True)
class Heading:
    """Of a column; text is aligned left, numbers right."""

    lines: str
    """With line breaks for the terminal."""
    is_text: bool = False
    is_whole: bool = False
    """Whether text is never folded on the terminal."""

    @property
    def text(self) -> str:
        """The heading in one line."""
        return self.lines.replace("\n", " ")


@dataclass(frozen=True)
class GridRow:
    """Cells, not more than the grid has columns, and the id that links lead to."""

    cells: tuple[Cell, ...]
    id: str = ""
    is_baseline: bool = False
    begins_section: bool = False


@dataclass(frozen=True)
class Grid:
    """A table laid out."""

    headings: tuple[Heading, ...]
    rows: tuple[GridRow, ...]

    def __add__(self, other: Grid) -> Grid:
        """The rows of both under the headings of the first, the second's as a section."""
        begin = (replace(row, begins_section=True) for row in other.rows[:1])
        return Grid(self.headings, (*self.rows, *begin, *other.rows[1:]))


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One fact of each row.

    Attributes:
        name: in files and frames, where an estimate takes ``NAME``, ``NAME_low`` and
            ``NAME_high``.
        heading: where it is shown; by default the name. Line breaks are for the terminal.
        value: the fact; by default the row's attribute of the column's name.
        shown: how a value is shown, where that does not follow from its type: a text, or lines.
        text: the same of a row, where it is not the value alone.
        tooltip, link, background, mark, style, gap: of its cells, see `Cell`.
        css: classes: "text" for what is aligned left, "wrap" for long text, "words" for what may
            go on in a second line between its words; by default "text" where the value is one.
        is_estimate: whether values are of type `Estimate` (or None).
        is_in_files: whether files and frames have it.
        is_whole: whether text is never folded on the terminal.
    """

    name: str = ""
    heading: str = ""
    value: Callable[[Row], Any] | None = None
    shown: Callable[[Any], Shown] | None = None
    text: Callable[[Row], Shown] | None = None
    tooltip: Callable[[Row], str] | None = None
    link: Callable[[Row], str | Path] | None = None
    background: Callable[[Row], str] | None = None
    mark: Callable[[Row], str] | None = None
    style: Callable[[Row], str] | None = None
    css: str = ""
    gap: str = " "
    is_estimate: bool = False
    is_in_files: bool = True
    is_whole: bool = False

    @property
    def names_in_files(self) -> tuple[str, ...]:
        """One name, or three for an estimate."""
        return (self.name, *(f"{self.name}_{end}" for end in ("low", "high") if self.is_estimate))

    def value_of(self, row: Row) -> Any:
        """The fact of a row."""
        return self.value(row) if self.value else getattr(row, self.name)

    def values_in_files(self, row: Row) -> tuple[Any, ...]:
        """The values under `names_in_files`."""
        value = self.value_of(row)
        if not self.is_estimate:
            return (value,)
        return (None,) * 3 if value is None else (value.mean, value.low, value.high)

    def cell(self, row: Row) -> Cell:
        """What is shown of a row."""
        value = self.value_of(row)
        if self.text:
            lines = self.text(row)
        else:
            lines = MISSING if value is None else (self.shown or _shown)(value)
        return Cell(
            lines=(lines,) if isinstance(lines, str) else lines,
            value=None if lines == MISSING else _sorted_by(value),
            tooltip=self.tooltip(row) if self.tooltip else "",
            link=self.link(row) if self.link else "",
            css=self.css or "text" * isinstance(value, str),
            background=self.background(row) if self.background else "",
            mark=self.mark(row) if self.mark else "",
            style=self.style(row) if self.style else "",
            gap=self.gap,
        )


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows of one kind, with their columns.

    Attributes:
        columns: in the order of files and frames.
        rows: what the columns take their values from.
        row_id: gives a row's id on the page.
        is_of_baselines: whether rows are of fixed policies, which the page sets apart.
    """

    columns: tuple[Column[Row], ...]
    rows: tuple[Row, ...] = ()
    row_id: Callable[[Row], str] | None = None
    is_of_baselines: bool = False
    _by_name: Mapping[str, Column[Row]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})

    def of(self, rows: Iterable[Row]) -> Table[Row]:
        """Returns the same table with these rows."""
        return Table(self.columns, tuple(rows), self.row_id, self.is_of_baselines)

    @property
    def names_in_files(self) -> tuple[str, ...]:
        """Headings in files and frames."""
        return tuple(chain.from_iterable(c.names_in_files for c in self._in_files()))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields each row's plain values by name; runs as paths."""
        for row in self.rows:
            values = chain.from_iterable(c.values_in_files(row) for c in self._in_files())
            yield dict(zip(self.names_in_files, values, strict=True))

    def grid(self, names: Names = (), headings: Mapping[str, str] = _AS_DECLARED) -> Grid:
        """Returns some columns, laid out.

        Args:
            names: of the columns; none: all.
            headings: by a column's name, instead of its own.
        """
        columns = self._named(names) or self.columns
        rows = tuple(
            GridRow(tuple(c.cell(row) for c in columns), self._id(row), self.is_of_baselines)
            for row in self.rows
        )
        return Grid(tuple(self._heading(column, headings) for column in columns), rows)

    def stacked(self, stacks: Iterable[Names], headings: Mapping[str, str] = _AS_DECLARED) -> Grid:
        """Returns columns for the terminal, some of which stand below others.

        Args:
            stacks: of the columns that stand in one place each.
            headings: by a column's name, instead of its own.
        """
        grids = [self.grid(names, headings) for names in stacks]
        rows = zip(*(grid.rows for grid in grids), strict=True)
        return Grid(
            tuple(
                replace(grid.headings[0], lines="\n".join(h.lines for h in grid.headings))
                for grid in grids
            ),
            tuple(
                GridRow(tuple(replace(row.cells[0], below=row.cells[1:]) for row in parts))
                for parts in rows
            ),
        )

    def spread(
        self,
        first: Names,
        across: str,
        places: Mapping[str, str],
        shown: str,
        last: Names = (),
        headings: Mapping[str, str] = _AS_DECLARED,
    ) -> Grid:
        """Returns a grid in which one column's values stand side by side.

        Args:
            first: columns at the left; rows that are alike in all of them become one.
            across: the column whose values stand side by side.
            places: these values, in order, to their headings; rows with other values are left out.
            shown: the column that is shown under each of them; what is absent is `MISSING`.
            last: columns at the right, taken from the first of the rows that become one.
            headings: by a column's name, instead of its own.
        """
        left, right = self._named(first), self._named(last)
        groups: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in self.rows:
            if (place := self._by_name[across].value_of(row)) in places:
                key = tuple(column.value_of(row) for column in left)
                groups.setdefault(key, {})[place] = row
        rows = []
        for group in groups.values():
            one = next(iter(group.values()))
            middle = (
                self._by_name[shown].cell(group[place]) if place in group else Cell((MISSING,))
                for place in places
            )
            cells = (*(c.cell(one) for c in left), *middle, *(c.cell(one) for c in right))
            rows.append(GridRow(cells, self._id(one), self.is_of_baselines))
        return Grid(
            (
                *(self._heading(column, headings) for column in left),
                *(Heading(text) for text in places.values()),
                *(self._heading(column, headings) for column in right),
            ),
            tuple(rows),
        )

    def _named(self, names: Names) -> list[Column[Row]]:
        names = names.split() if isinstance(names, str) else names
        return [self._by_name[name] for name in names]

    def _in_files(self) -> Iterator[Column[Row]]:
        return (column for column in self.columns if column.is_in_files)

    def _heading(self, column: Column[Row], instead: Mapping[str, str]) -> Heading:
        return Heading(
            instead.get(column.name, column.heading or column.name),
            any(not _TEXT.isdisjoint(column.cell(row).css.split()) for row in self.rows[:1]),
            column.is_whole,
        )

    def _id(self, row: Row) -> str:
        return self.row_id(row) if self.row_id else ""


def table(
    names: str,
    rows: Iterable[Row],
    *,
    row_id: Callable[[Row], str] | None = None,
    is_of_baselines: bool = False,
    **special: Column[Row] | str,
) -> Table[Row]:
    """Returns a table of rows whose attributes are what it shows, by and large.

    Args:
        names: of the columns; those of estimates end in a star.
        rows: of one kind.
        row_id, is_of_baselines: as in `Table`.
        special: by name, a column that is not the attribute as it is, or its heading alone; of
            names that Python keeps for itself with an underscore behind: ``return_``.
    """

    def column(name: str) -> Column[Row]:
        plain = name.rstrip("*")
        given = special.get(plain, special.get(f"{plain}_", ""))
        found = Column[Row](heading=given) if isinstance(given, str) else given
        return replace(found, name=plain, is_estimate=plain != name)

    return Table(tuple(map(column, names.split())), tuple(rows), row_id, is_of_baselines)


def markdown(grid: Grid) -> str:
    """Returns a grid as Markdown has tables."""
    rules = ("---" if heading.is_text else "---:" for heading in grid.headings)
    return "\n".join(
        [
            _line(heading.text for heading in grid.headings),
            f"|{'|'.join(rules)}|",
            *(_line(_SPECIAL.sub(r"\\\1", cell.text) for cell in row.cells) for row in grid.rows),
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: Any) -> Shown:
    if isinstance(value, Estimate):
        return interval_lines(value)
    if isinstance(value, float):
        return number(value)
    return value.name if isinstance(value, Path) else str(value) or MISSING


def _sorted_by(value: Any) -> float | None:
    if isinstance(value, Estimate):
        value = value.mean
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number else None
