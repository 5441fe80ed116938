"""Lays out all tables on the terminal."""

from __future__ import annotations

import re
from itertools import chain

from rich import box
from rich.table import Table
from rich.text import Text

from muxrl.orchestrator.reports.table import Cell, Grid, Heading

_MIN_NAME_WIDTH = 10


def plain_table(title: str, caption: str = "") -> Table:
    """Returns an empty table; brackets in its title and caption are not markup."""
    return Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=Text(caption) if caption else None,
        caption_justify="left",
    )


def grid_table(
    grid: Grid,
    title: str = "",
    caption: str = "",
    *,
    min_text: int | None = None,
    folds: bool = False,
    width: int | None = None,
) -> Table:
    """Returns a grid as a table for the terminal.

    Args:
        grid: the grid.
        title, caption: are shown above and below the table.
        min_text: least width of columns of text.
        folds: whether numbers are folded, too, if the window is narrow.
        width: of the window; if given, text is broken after its punctuation, see `broken`.
    """
    table = plain_table(title, caption)
    for heading in grid.headings:
        is_whole = heading.is_whole if heading.is_text else not folds
        table.add_column(
            Text(heading.lines),
            justify="left" if heading.is_text else "right",
            overflow="ellipsis" if is_whole else "fold",
            no_wrap=is_whole,
            min_width=min_text if heading.is_text else None,
        )
    room = None if width is None else _room(grid, width)
    for row in grid.rows:
        if row.begins_section:
            table.add_section()
        style = "dim" if row.is_baseline else ""
        columns = zip(grid.headings, row.cells, strict=False)
        table.add_row(*(_text(cell, style, h.is_text and room) for h, cell in columns))
    return table


def broken(name: str, width: int) -> list[str]:
    """Breaks a long name into lines, at spaces or after punctuation, not inside words."""
    lines = [""]
    for part in re.split(r"(?<=[\s_,|:.-])", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _room(grid: Grid, width: int) -> int:
    """Returns the width left for text, next to columns of numbers and the spaces around them."""
    columns = [grid.headings, *(row.cells for row in grid.rows)]
    widths = [
        max(map(len, chain.from_iterable(map(_lines, column))))
        for heading, *column in zip(grid.headings, *columns, strict=True)
        if not heading.is_text
    ]
    return max(_MIN_NAME_WIDTH, width - sum(widths) - 2 * len(widths) - 2)


def _lines(cell: Cell | Heading) -> list[str]:
    if isinstance(cell, Heading):
        return cell.lines.split("\n")
    return [line for one in (cell, *cell.below) for line in one.lines]


def _text(cell: Cell, style: str, room: int | None) -> Text:
    """Returns the text of a cell and of those below it, in lines that fit `room`, if given."""
    texts = []
    for one in (cell, *cell.below):
        lines = [part for line in one.lines for part in (broken(line, room) if room else [line])]
        texts.append(Text("\n".join(lines), style=one.style or style))
    return Text("\n").join(texts)
