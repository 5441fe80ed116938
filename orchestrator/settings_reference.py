"""Writes the tables of settings on the algorithms' pages from the declarations in their configs.

    python -m muxrl.orchestrator.settings_reference

A table stands below ``<!-- settings of NAME -->``. What several algorithms declare alike stands
once, below ``<!-- common settings -->``. A test compares the committed pages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from muxrl.orchestrator.config_reference import documented_fields
from muxrl.servers.algorithms.declared_settings import declaring_classes
from muxrl.servers.algorithms.registry import ALGORITHMS, get_algorithm

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "algorithms.md", *(DOCS / "algorithms").glob("*.md")]
COMMON = (
    "gamma",
    "grad_clip_by",
    "min_sample_timesteps_per_iteration",
    "min_time_s_per_iteration",
    "min_train_timesteps_per_iteration",
    "train_batch_size",
)
"""Settings that have the same meaning wherever they are declared."""
_HEAD = "| setting | default | meaning |\n|---|---|---|\n"
_TABLE = re.compile(r"(<!-- (?:settings of (\w+)|common settings) -->\n\n)(?:\|.*\n)*")


def table(algorithm: str) -> str:
    """Returns the table of an algorithm's settings, less the common ones, with the head."""
    meanings = _meanings(algorithm)
    defaults = get_algorithm(algorithm).settings()
    rows = (f"| `{n}` | `{v}` | {meanings[n]} |\n" for n, v in defaults.items() if n not in COMMON)
    return _HEAD + "".join(rows)


def common_table() -> str:
    """Returns the table of the common settings, with the head.

    Raises:
        ValueError: one of them has several meanings.
    """
    return _HEAD + "".join(map(_common_row, COMMON))


def with_tables(page: str) -> str:
    """Returns the text of a page with its tables made anew."""
    return _TABLE.sub(lambda f: f[1] + (table(f[2]) if f[2] else common_table()), page)


def _meanings(algorithm: str) -> dict[str, str]:
    classes = declaring_classes(get_algorithm(algorithm).training.config_class)
    return {
        field.target.id: meaning
        for cls in reversed(classes)
        for field, meaning in documented_fields(cls)
    }


def _common_row(name: str) -> str:
    owners = [entry for entry in ALGORITHMS if name in entry.settings()]
    meanings = {_meanings(entry.name)[name] for entry in owners}
    if len(meanings) != 1:
        raise ValueError(f"{name} does not mean the same everywhere: {meanings}")
    by_default: dict[str, list[str]] = defaultdict(list)
    for entry in owners:
        by_default[f"`{entry.settings()[name]}`"].append(entry.name)
    usual, *others = sorted(by_default, key=lambda default: -len(by_default[default]))
    default = "; ".join([usual, *(f"{', '.join(by_default[o])}: {o}" for o in others)])
    return f"| `{name}` | {'differs' if len(others) > 1 else default} | {meanings.pop()} |\n"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
