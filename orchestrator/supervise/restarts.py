"""Limits how often a process is started again."""

from __future__ import annotations

import time

from muxrl.orchestrator.errors import RunFailed
from muxrl.servers.config import RestartsConfig


class Quota:
    """Counts the restarts of one process, and raises if there are too many.

    Args:
        config: how many restarts are allowed in which time.
        key: the key of the config that says so, for messages.
    """

    def __init__(self, config: RestartsConfig, key: str) -> None:
        self._config = config
        self._key = key
        self._taken_at: list[tuple[float, str]] = []
        self.num_taken = 0
        """Restarts since the run was launched or resumed."""

    def take(self, problem: RunFailed, now: float | None = None) -> None:
        """Counts one more restart.

        Args:
            problem: why the process has to be started again.
            now: monotonic time; None: read the clock.

        Raises:
            RunFailed: there would be too many restarts, or a problem came from the same place
                before; its text is the problem, and how often the process was started again.
        """
        now = time.monotonic() if now is None else now
        within_s = self._config.within_s
        self._taken_at = [(at, place) for at, place in self._taken_at if now - at < within_s]
        if self._config.max == 0:
            raise problem
        if problem.place and problem.place in (place for _, place in self._taken_at):
            raise RunFailed(
                f"{problem}; the same line raised before within {within_s:g} s, so the process is "
                "not started again"
            ) from problem
        if len(self._taken_at) >= self._config.max:
            raise RunFailed(
                f"{problem}; the process was started again {_times(len(self._taken_at))} within "
                f"{self._config.within_s:g} s, as often as {self._key}.max allows, and "
                f"{_times(self.num_taken)} in all"
            ) from problem
        self._taken_at.append((now, problem.place))
        self.num_taken += 1


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
