"""Matches names by shell patterns (``fnmatch``, case matters) and by number ranges in braces.

``car_{0..9}`` stands for car_0 to car_9, both in a list of agents to serve and in the declaration
of an external simulation's agents; ``{00..09}`` keeps the zeros. ``car_{0..}`` matches any number
of them, but cannot declare agents. A pattern that equals a name matches only that name, so an agent
called ``car[1]`` can be named as it is. Matches of one pattern come in the order of the names,
those of several patterns in the order of the patterns.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from muxrl.protocol.suggestions import did_you_mean

_COUNTED = re.compile(r"(.*?)\{(\d+)\.\.(\d+)\}(.*)", re.DOTALL)
_ENDLESS = re.compile(r"(.*?)\{(\d+)\.\.\}(.*)", re.DOTALL)
_MOST_COUNTED = 100_000
"""Most names that a pattern may stand for: more would be a typo."""


def expand(pattern: str) -> list[str]:
    """Returns the names that a pattern's braces stand for, in order; [pattern] without braces.

    Raises:
        ValueError: the pattern counts downwards, too far, or without end.
    """
    if endless := _ENDLESS.fullmatch(pattern):
        before, first, after = endless.groups()
        raise ValueError(
            f"{pattern!r} counts without end; say how many there may be at a time, such as "
            f"{before}{{{first}..{int(first) + 9}}}{after}"
        )
    found = _COUNTED.fullmatch(pattern)
    if found is None:
        return [pattern]
    before, first, last, after = found.groups()
    num = int(last) - int(first) + 1
    if num < 1:
        raise ValueError(f"{pattern!r} counts downwards; write {{{last}..{first}}}")
    rests = expand(after)
    if num * len(rests) > _MOST_COUNTED:
        raise ValueError(f"{pattern!r} stands for more than {_MOST_COUNTED:,} names")
    width = len(first) if first.startswith("0") else 0
    numbers = range(int(first), int(last) + 1)
    return [f"{before}{number:0{width}}{rest}" for number in numbers for rest in rests]


def match(patterns: Iterable[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the matched names, each once, and the patterns without a match.

    Every name that a pattern with braces stands for has to match; the first one that does not is
    returned in place of the pattern.

    Args:
        patterns: names or patterns; an entry that equals a name is no pattern.
        names: the names to match, in the order in which a pattern's matches are returned.
    """
    matched: dict[str, None] = {}
    idle = []
    for pattern in patterns:
        missing = []
        for each in _expanded(pattern, names):
            hits = [each] if each in names else fnmatch.filter(names, each)
            matched.update(dict.fromkeys(hits))
            if not hits:
                missing.append(each)
        idle += missing[:1]
    return list(matched), idle


def _expanded(pattern: str, names: Sequence[str]) -> list[str]:
    try:
        return [pattern] if pattern in names else expand(pattern)
    except ValueError:  # without a match, the pattern itself is reported
        return [name for name in names if _counts(pattern, name)] or [pattern]


def _counts(pattern: str, name: str) -> bool:
    """Whether a pattern that counts without end reaches a name."""
    endless = _ENDLESS.fullmatch(pattern)
    if endless is None:
        return False
    before, first, after = endless.groups()
    number = name.removeprefix(before).removesuffix(after)
    width = len(first) if first.startswith("0") else 0
    return (
        number.isdecimal()
        and int(number) >= int(first)
        and name == f"{before}{int(number):0{width}}{after}"
    )


def similar_pattern(pattern: str, names: Sequence[str]) -> str:
    """Returns "; did you mean ...?" with similar names, or patterns of numbered names."""
    numbered = {name.rstrip("0123456789") + "*" for name in names if name[-1:].isdigit()}
    return did_you_mean(pattern, [*names, *sorted(numbered)] if "*" not in pattern else numbered)


def abridged(names: Iterable[str]) -> list[str]:
    """Returns names with consecutive numbers joined: ``car_{0..2}`` for car_0, car_1, car_2."""
    rows: list[tuple[str, list[str]]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        if rows and rows[-1][0] == stem and _follows(rows[-1][1][-1], number):
            rows[-1][1].append(number)
        else:
            rows.append((stem, [number]))
    found = []
    for stem, numbers in rows:
        if len(numbers) > 2:
            found.append(f"{stem}{{{numbers[0]}..{numbers[-1]}}}")
        else:
            found += [stem + number for number in numbers]
    return found


def _follows(before: str, number: str) -> bool:
    """Whether a number follows another one; both without leading zeros."""
    return bool(before and number) and number == str(int(before) + 1) and before == str(int(before))


def unnumbered(agent: str) -> str:
    """Returns an agent's name without its last number: "prey" for "prey_0", "red1" for "red1_2"."""
    return re.sub(r"[_\-. ]?\d+$", "", agent) or agent
