"""What to say of a name that nobody knows. Here, because all layers refuse names, and alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILAR = 0.6  # difflib's own cutoff


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1) -> str:
    """Returns "; did you mean 'x' or 'y'?" with the most similar names, "" if none is like it.

    Args:
        word: what was written.
        known: what could have been; upper and lower case are alike.
        most: how many names are given at most.
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=most, cutoff=_SIMILAR)
    return f"; did you mean {' or '.join(repr(by_lower[c]) for c in close)}?" if close else ""
