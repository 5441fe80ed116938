"""Suggestions for misspelt names; here because every layer refuses unknown names alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILAR = 0.6  # difflib's own cutoff


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1) -> str:
    """Returns "; did you mean 'x' or 'y'?" with the most similar names, "" if none is similar.

    Args:
        word: what was written.
        known: the valid names; case is ignored.
        most: maximum number of suggestions.
    """
    matcher = difflib.SequenceMatcher(b=word.lower())
    close = []
    for name in known:
        matcher.set_seq1(name.lower())
        if matcher.quick_ratio() >= _SIMILAR and (ratio := matcher.ratio()) >= _SIMILAR:
            close.append((ratio, name))
    close.sort(key=lambda found: -found[0])  # stable: ties stay in the order of `known`
    return f"; did you mean {' or '.join(repr(name) for _, name in close[:most])}?" if close else ""
