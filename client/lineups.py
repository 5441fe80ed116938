"""What a client remembers of agents that act together: how to make their rows, and if they help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

Agents = tuple[str, ...]

MOST_MISSES = 3
"""Messages in a row in which a server read the rows of some agents one by one: its seats are of a
class without a bench, say. Then their steps go singly for a while."""
_REST = 1_000
"""Messages until their rows are tried again."""
_MOST_KNOWN = 1_000
"""Agents that come and go make a lineup of each combination."""


class Lineups(Generic[T]):
    """Remembers what was made of each lineup.

    Args:
        make: what its rows need.
    """

    def __init__(self, make: Callable[[Agents], T]) -> None:
        self._make = make
        self._known: dict[Agents, T] = {}
        self._misses: Counter[Agents] = Counter()

    def find(self, agents: Agents) -> T | None:
        """Returns what was made; None: their rows are not worth it now."""
        misses = self._misses[agents]
        if misses >= MOST_MISSES:
            self._misses[agents] = misses + 1 if misses < _REST else MOST_MISSES - 1
            return None
        if agents not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
                self._misses.clear()
            self._known[agents] = self._make(agents)
        return self._known[agents]

    def note(self, agents: Agents, *, were_read: bool) -> None:
        """Notes whether rows were read as such."""
        self._misses[agents] = 0 if were_read else self._misses[agents] + 1
