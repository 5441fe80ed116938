"""Writes the lists of settings on the algorithms' pages from the settings' declarations.

    python -m muxrl.orchestrator.settings_reference

A list stands below ``<!-- settings of NAME -->``. What several algorithms declare alike stands
once, below ``<!-- common settings -->``. A test compares the committed pages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from muxrl.servers.lookup import find, own_algorithms

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "algorithms.md", *(DOCS / "algorithms").glob("*.md")]
SHOWN_BY = {"VDN": "QMIX", "QPLEX": "QMIX", "IQL": "QMIX", "HAPPO": "MAPPO"}
"""Algorithms whose settings stand on another one's page."""
_LIST = re.compile(r"(<!-- (?:settings of (\w+)|common settings) -->\n\n)(?:- .*\n)*")


def settings_list(algorithm: str) -> str:
    """Returns the list of an algorithm's settings, without the common ones."""
    meaning_of = find(algorithm).meanings()
    common = _common()
    defaults = find(algorithm).settings()
    own = {n: v for n, v in defaults.items() if (n, meaning_of[n]) not in common}
    return "".join(f"- `{n}` (`{v}`): {meaning_of[n]}\n" for n, v in own.items())


def common_list() -> str:
    """Returns the list of settings that three or more pages would show alike."""
    return "".join(
        f"- `{name}` ({_defaults(name, owners)}): {meaning}\n"
        for (name, meaning), owners in sorted(_common().items())
    )


def with_lists(page: str) -> str:
    """Returns the text of a page with its lists made anew."""
    return _LIST.sub(lambda f: f[1] + (settings_list(f[2]) if f[2] else common_list()), page)


@cache
def _common() -> dict[tuple[str, str], list[str]]:
    """Returns by name and meaning of each common setting the algorithms that have it."""
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in own_algorithms():
        meaning_of = entry.meanings()
        for name in entry.settings():
            owners[name, meaning_of[name]].append(entry.name)
    return {of: names for of, names in owners.items() if len({*names} - {*SHOWN_BY}) >= 3}


def _defaults(name: str, owners: list[str]) -> str:
    by_default: dict[str, list[str]] = defaultdict(list)
    for owner in owners:
        by_default[f"`{find(owner).settings()[name]}`"].append(owner)
    if len(by_default) == 1 and len(owners) == len(own_algorithms()):
        return next(iter(by_default))
    return "; ".join(f"{', '.join(names)}: {default}" for default, names in by_default.items())


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_lists(path.read_text(encoding="utf-8")), encoding="utf-8")
