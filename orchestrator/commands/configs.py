"""``muxrl configs``: list the experiments, sweeps and leagues that come with muxrl.

Lists the experiments, sweeps and leagues that muxrl knows by name.
"""

from __future__ import annotations

import re
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import table_console

_KINDS = (
    ("conf", "experiments", "muxrl check NAME, muxrl launch NAME"),
    ("sweeps", "sweeps", "muxrl sweep NAME --dry-run, muxrl sweep NAME"),
    ("leagues", "leagues", "muxrl check NAME, muxrl league NAME"),
)
_SENTENCE = re.compile(r"(.*?[.?!])(?= [A-Z]|$)")
"""Matches the first sentence; the dot in "Rashid et al. 2018" does not end it."""


@command(only_prints=True)
def configs() -> None:
    """Prints the lists."""
    from rich.markup import escape

    from muxrl.orchestrator.config.load import packaged_configs
    from muxrl.orchestrator.reports.plain_table import plain_table

    console = table_console()
    for kind, title, use in _KINDS:
        table = plain_table(f"{title}: {use}")
        table.add_column("name", no_wrap=True)
        table.add_column("what it is")
        for name, path in packaged_configs(kind).items():
            table.add_row(name, escape(describe(path)))
        console.print(table)


def describe(path: Path) -> str:
    """Returns the first sentence of the comment at a file's beginning; "" if it has none."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# yaml-language-server:"):
            lines.append(line.removeprefix("#").strip())
    text = " ".join(lines)
    first = _SENTENCE.match(text)
    return first[1] if first else text
