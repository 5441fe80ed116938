"""How all tables on the terminal look."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text


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
