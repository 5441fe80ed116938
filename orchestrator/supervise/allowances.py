"""Shares the env steps up to the next point of a run out to the processes that play.

Each gets an equal part. One that has used up its own gets half of what another has left, so that
all come to the point at about the same time, however fast each is; then all of them wait for what
the run does there. What one gives back counts as its own until its answer is here, however late.
"""

from __future__ import annotations

from typing import Any

from muxrl.orchestrator.supervise.actors import outcome


class Allowances:
    """What each process may play, and has played as far as is known; its counts begin at 0."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._allowed: dict[str, int] = {}
        self._played: dict[str, int] = {}
        self._calls: dict[str, Any] = {}
        """Of those that play: returns when all is used up."""
        self._asked: dict[str, Any] = {}
        """Of those that are to give back: returns how much."""
        self._has_little: set[str] = set()
        """Those that had nothing to give back when they were asked."""

    @property
    def calls(self) -> list[Any]:
        """What Ray is to wait for; `take` takes those that have returned."""
        return [*self._calls.values(), *self._asked.values()]

    def add(self, name: str, actor: Any) -> None:
        """Takes in a process that begins to play; `share_out` gives it something."""
        self._actors[name], self._allowed[name], self._played[name] = actor, 0, 0

    def drop(self, name: str) -> None:
        """Forgets a process; what it had left is shared out again."""
        for of_name in (self._actors, self._allowed, self._played, self._calls, self._asked):
            of_name.pop(name, None)
        self._has_little.discard(name)

    def note(self, name: str, num_env_steps: int) -> None:
        """Takes in what a process has played."""
        if name in self._played:
            self._played[name] = num_env_steps

    def share_out(self, num_env_steps: int) -> None:
        """Gives what is not given yet.

        Args:
            num_env_steps: of all processes up to the next point, as of their newest reports.
        """
        free = num_env_steps - sum(self._left(name) for name in self._actors)
        for i, name in enumerate(self._actors):
            share = free // len(self._actors) + (i < free % len(self._actors))
            if share > 0:
                self._give(name, share + max(0, self._played[name] - self._allowed[name]))

    def take(self, call: Any) -> None:
        """Sees to a process that has used up what it was allowed, or that has given back."""
        for of_name in (self._calls, self._asked):
            name = next((name for name, one in of_name.items() if one is call), None)
            if name is None:  # of a process that is lost, or was given more since
                continue
            del of_name[name]
            if of_name is self._asked and isinstance(half := outcome(call), int):
                self._take_back(name, half)
        idle = len(self._actors) - len(self._calls)
        able = self._calls.keys() - self._asked.keys() - self._has_little
        for other in sorted(able, key=self._left, reverse=True)[: max(0, idle - len(self._asked))]:
            self._asked[other] = self._actors[other].give_back.remote()

    def _take_back(self, name: str, num_env_steps: int) -> None:
        """Gives what a process gives back to one that has nothing; else `share_out` does."""
        self._allowed[name] -= num_env_steps
        if not num_env_steps:
            self._has_little.add(name)
        elif idle := self._actors.keys() - self._calls.keys():
            self._give(min(idle), num_env_steps)

    def _left(self, name: str) -> int:
        return max(0, self._allowed[name] - self._played[name])

    def _give(self, name: str, num_env_steps: int) -> None:
        self._allowed[name] += num_env_steps
        self._has_little.discard(name)
        self._calls[name] = self._actors[name].allow.remote(num_env_steps)
