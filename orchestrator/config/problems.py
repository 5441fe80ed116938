"""Names in a message."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[str], most: int = 8) -> str:
    """Returns names as "a, b, c", cut after `most` of them."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
