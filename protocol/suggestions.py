"""Words for error texts: which name a misspelt one may mean, and which names are known.

They are in the protocol because every layer refuses unknown names in the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_SIMILAR = 0.6  # difflib's own cutoff
_LONGEST = 100  # longer texts are no names, and comparing them takes long


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1) -> str:
    """Returns "; did you mean 'x' or 'y'?" with the most similar names, "" if none is similar.

    Args:
        word: the unknown name.
        known: the valid names; case is ignored.
        most: maximum number of suggestions.
    """
    if len(word) > _LONGEST:
        return ""
    matcher = difflib.SequenceMatcher(b=word.lower())
    close = []
    for name in known:
        matcher.set_seq1(name.lower())
        if matcher.quick_ratio() >= _SIMILAR and (ratio := matcher.ratio()) >= _SIMILAR:
            close.append((ratio, name))
    close.sort(key=lambda found: -found[0])  # stable: ties stay in the order of `known`
    return f"; did you mean {' or '.join(repr(name) for _, name in close[:most])}?" if close else ""


def listed(names: Iterable[str], most: int = 8) -> str:
    """Returns names as "a, b, c", with only the number of names after the first `most`."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def similar_or_known(name: str, known: Collection[str], intro: str = "known are") -> str:
    """Returns "; did you mean 'x'?", or "; known are a, b, c" if no name is similar."""
    return did_you_mean(name, known) or f"; {intro} {listed(known) or 'none'}"
