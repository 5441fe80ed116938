"""Writes the table of settings on each algorithm's page from the declarations in its config.

    python -m muxrl.orchestrator.settings_reference

A table stands below ``<!-- settings of NAME -->``. A test compares the committed pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from muxrl.orchestrator.config_reference import documented_fields
from muxrl.servers.algorithms.declared_settings import declaring_classes
from muxrl.servers.algorithms.registry import get_algorithm

PAGES = Path(__file__).resolve().parents[1] / "docs" / "algorithms"
_TABLE = re.compile(r"(<!-- settings of (\w+) -->\n\n)(?:\|.*\n)*")


def table(algorithm: str) -> str:
    """Returns the table of an algorithm's settings, with the head."""
    entry = get_algorithm(algorithm)
    meanings = {
        field.target.id: meaning
        for cls in reversed(declaring_classes(entry.training.config_class))
        for field, meaning in documented_fields(cls)
    }
    rows = (f"| `{n}` | `{v}` | {meanings[n]} |\n" for n, v in entry.settings().items())
    return "| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)


def with_tables(page: str) -> str:
    """Returns the text of a page with its tables made anew."""
    return _TABLE.sub(lambda found: found[1] + table(found[2]), page)


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
