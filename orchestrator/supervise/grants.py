"""Divides the env steps up to the next point of a run among the processes that play.

The point is where the run does something, such as an evaluation. A process gets more env steps as
soon as it has used up its last grant: half of its share of what is left, so that all come to
the point at about the same time, however fast each is (guided self-scheduling: Polychronopoulos and
Kuck 1987). Then all wait until the run goes on. No grant is ever taken back.
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
    """Env steps played, as of the process's newest report."""
    is_idle: bool = True
    """Whether it has used up all that it was given."""


class Grants:
    """Grants env steps to processes.

    Args:
        least: the smallest grant, as long as so many are left: the env steps that a process plays
            in one round.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._players: dict[str, _Player] = {}
        self._free = 0
        self._is_free = asyncio.Event()
        self.used_up = asyncio.Event()
        """Set while all env steps have been given and used up."""
        self.used_up.set()

    async def serve(self, name: str, allow: Callable[[int], Awaitable[Any]]) -> None:
        """Gives a process more env steps whenever it has used up its own, until this is cancelled.

        What it has not used then goes to the other processes with the next `extend`.

        Args:
            name: of the process.
            allow: gives the process so many more env steps, and returns once they are used up.
        """
        player = self._players[name] = _Player()
        try:
            while True:
                while not self._free:
                    await self._is_free.wait()
                player.is_idle = False
                # A process that was held may have played on without a grant.
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
        """Notes how many env steps a process has played since it began."""
        if (player := self._players.get(name)) is not None:
            player.played = num_env_steps

    def extend(self, num_env_steps: int) -> None:
        """Makes env steps available up to the next point, less those that are given but not played.

        Args:
            num_env_steps: env steps of all processes together up to the next point, as of their
                newest reports.
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
