"""Gives the env steps up to the next point of a run to the processes that play.

One gets more as soon as it has used up its own: half of its share of what is left, so that all come
to the point at about the same time, however fast each is (guided self-scheduling: Polychronopoulos
and Kuck 1987). Then all of them wait for what the run does there. Nothing is ever taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class _Player:
    given: int = 0
    played: int = 0
    """As of its newest report."""
    is_idle: bool = True
    """Whether all that it was given is used up."""


class Grants:
    """What each process may play.

    Args:
        least: env steps that are given at once, as long as there are so many: what a process plays
            in one round.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._players: dict[str, _Player] = {}
        self._free = 0
        self._is_free = asyncio.Event()
        self.used_up = asyncio.Event()
        """Set while all that there is has been given and used up."""
        self.used_up.set()

    async def serve(self, name: str, allow: Callable[[int], Awaitable[Any]]) -> None:
        """Gives a process more whenever it has used up its own, until this is cancelled.

        Others get what it has left then, with the next `extend`.

        Args:
            name: of the process.
            allow: gives it so many env steps more, and returns once they are used up.
        """
        player = self._players[name] = _Player()
        try:
            while True:
                while not self._free:
                    await self._is_free.wait()
                player.is_idle = False
                # One that was held has played on without being given anything.
                num = self._share() + max(0, player.played - player.given)
                player.given += num
                await allow(num)
                player.is_idle = True
                self._look_for_end()
        finally:
            del self._players[name]
            self._look_for_end()

    def _share(self) -> int:
        num = self._free
        if len(self._players) > 1:
            num = min(num, max(self._least, num // (2 * len(self._players))))
        self._set_free(self._free - num)
        return num

    def note(self, name: str, num_env_steps: int) -> None:
        """Notes what a process has played since it began."""
        if (player := self._players.get(name)) is not None:
            player.played = num_env_steps

    def extend(self, num_env_steps: int) -> None:
        """Gives what is not given yet.

        Args:
            num_env_steps: of all processes up to the next point, as of their newest reports.
        """
        left = sum(max(0, one.given - one.played) for one in self._players.values())
        self._set_free(max(0, num_env_steps - left))

    def _set_free(self, num: int) -> None:
        self._free = num
        if num:
            self._is_free.set()
            self.used_up.clear()
        else:
            self._is_free.clear()
            self._look_for_end()

    def _look_for_end(self) -> None:
        if not self._free and all(one.is_idle for one in self._players.values()):
            self.used_up.set()
