"""Names in a message."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from muxrl.protocol.suggestions import did_you_mean


def listed(names: Iterable[str], most: int = 8) -> str:
    """Returns names as "a, b, c", cut after `most` of them."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def similar_or_known(name: str, known: Collection[str], intro: str = "known are") -> str:
    """Returns "; did you mean 'x'?", or "; known are a, b, c" where no name is similar."""
    return did_you_mean(name, known) or f"; {intro} {listed(known) or 'none'}"
