"""Shell patterns to names (``fnmatch``, case matters).

A name is taken as a name first, so that an agent called ``car[1]`` can be named as it is. Matches
of one pattern come in the order of the names, those of several in the order of the patterns.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from muxrl.protocol.suggestions import did_you_mean


def match(patterns: Iterable[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the matched names, once each, and the patterns that match none.

    Args:
        patterns: names or shell patterns; a name wins over a pattern.
        names: to match, in the order in which one pattern's matches are returned.
    """
    matched: dict[str, None] = {}
    idle = []
    for pattern in patterns:
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        matched.update(dict.fromkeys(hits))
        if not hits:
            idle.append(pattern)
    return list(matched), idle


def similar_pattern(pattern: str, names: Sequence[str]) -> str:
    """Returns "; did you mean ...?" from the names and the patterns that number them."""
    numbered = {name.rstrip("0123456789") + "*" for name in names if name[-1:].isdigit()}
    return did_you_mean(pattern, [*names, *sorted(numbered)] if "*" not in pattern else numbered)
