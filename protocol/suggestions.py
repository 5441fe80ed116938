"""Names in messages: what a misspelt one may mean, and which there are.

Here because every layer refuses unknown names alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_SIMILAR = 0.6  # difflib's own cutoff
_LONGEST = 100  # what is longer is no name, and looking for one would take long


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1) -> str:
    """Returns "; did you mean 'x' or 'y'?" with the most similar names, "" if none is similar.

    Args:
        word: what was written.
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
    """Returns names as "a, b, c", cut after `most` of them."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def similar_or_known(name: str, known: Collection[str], intro: str = "known are") -> str:
    """Returns "; did you mean 'x'?", or "; known are a, b, c" where no name is similar."""
    return did_you_mean(name, known) or f"; {intro} {listed(known) or 'none'}"
