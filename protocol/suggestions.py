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
    matcher = difflib.SequenceMatcher(b=word.lower())
    close = []
    for name in known:
        matcher.set_seq1(name.lower())
        if matcher.quick_ratio() >= _SIMILAR and (ratio := matcher.ratio()) >= _SIMILAR:
            close.append((ratio, name))
    close.sort(key=lambda found: -found[0])  # equals stay in the order of `known`
    return f"; did you mean {' or '.join(repr(name) for _, name in close[:most])}?" if close else ""
