"""Gives the env steps up to the next point of a run to the processes that play.

One gets more as soon as it has used up its own: half of its share of what is left, so that all come
to the point at about the same time, however fast each is (guided self-scheduling: Polychronopoulos
and Kuck 1987). Then all of them wait for what the run does there. Nothing is ever taken back.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from muxrl.orchestrator.errors import ProcessEnded
from muxrl.orchestrator.supervise.worker import Caller


@dataclass
class _Player:
    caller: Caller
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
        self._lock = threading.RLock()
        self._players: dict[str, _Player] = {}
        self._free = 0
        self.used_up: Future[None] = Future()
        """Done once all that there is has been given and used up."""
        self.used_up.set_result(None)
        self.failed: dict[str, BaseException] = {}
        """By process, what it raised when it was given more; one that has ended does not count."""

    def add(self, name: str, caller: Caller) -> None:
        """Notes a process that begins to play; `extend` gives it something."""
        with self._lock:
            self._players[name] = _Player(caller)

    def drop(self, name: str) -> None:
        """Forgets a process; `extend` gives to others what it had left."""
        with self._lock:
            self._players.pop(name, None)
            self.failed.pop(name, None)
            self._note_end()

    def note(self, name: str, num_env_steps: int) -> None:
        """Notes what a process has played since it began."""
        with self._lock:
            if (player := self._players.get(name)) is not None:
                player.played = num_env_steps

    def extend(self, num_env_steps: int) -> None:
        """Gives what is not given yet.

        Args:
            num_env_steps: of all processes up to the next point, as of their newest reports.
        """
        with self._lock:
            left = sum(max(0, one.given - one.played) for one in self._players.values())
            self._free = max(0, num_env_steps - left)
            self._give()

    def _give(self) -> None:
        for name, player in self._players.items():
            if not self._free or not player.is_idle:
                continue
            num = self._free
            if len(self._players) > 1:
                num = min(num, max(self._least, num // (2 * len(self._players))))
            self._free -= num
            # One that was held has played on without being given anything.
            num += max(0, player.played - player.given)
            player.given += num
            player.is_idle = False
            if self.used_up.done():
                self.used_up = Future()
            call = player.caller.call("allow", num)
            call.add_done_callback(lambda done, name=name, one=player: self._take(done, name, one))  # type: ignore[misc]

    def _take(self, done: Future[Any], name: str, player: _Player) -> None:
        with self._lock:
            error = done.exception()
            if self._players.get(name) is not player:
                pass
            elif error is None:
                player.is_idle = True
                self._give()
            elif not isinstance(error, ProcessEnded):
                self.failed[name] = error
            self._note_end()

    def _note_end(self) -> None:
        is_over = not self._free and all(one.is_idle for one in self._players.values())
        if is_over and not self.used_up.done():
            self.used_up.set_result(None)
