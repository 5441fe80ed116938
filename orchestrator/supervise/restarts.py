"""How often a process may be started again."""

from __future__ import annotations

import time

from muxrl.orchestrator.errors import RunFailed
from muxrl.servers.config import RestartsConfig


class Quota:
    """The restarts of one process.

    Args:
        config: how many of them in which time.
        key: of the config, for messages.
    """

    def __init__(self, config: RestartsConfig, key: str) -> None:
        self._config = config
        self._key = key
        self._taken_at: list[tuple[float, str]] = []
        self.num_taken = 0
        """In all, since the run was launched or resumed."""

    def take(self, problem: RunFailed, now: float | None = None) -> None:
        """Counts one more.

        Args:
            problem: why it is needed.
            now: monotonic time; None asks the clock.

        Raises:
            RunFailed: that would be too many, or it came from the same place before; the problem,
                and how often it was started again.
        """
        now = time.monotonic() if now is None else now
        within_s = self._config.within_s
        self._taken_at = [(at, place) for at, place in self._taken_at if now - at < within_s]
        if self._config.max == 0:
            raise problem
        if problem.place and problem.place in (place for _, place in self._taken_at):
            raise RunFailed(
                f"{problem}; the same happened there before within {within_s:g} s, so that it is "
                "not started again"
            ) from problem
        if len(self._taken_at) >= self._config.max:
            raise RunFailed(
                f"{problem}; it was started again {_times(len(self._taken_at))} within "
                f"{self._config.within_s:g} s, as often as {self._key}.max allows, and "
                f"{_times(self.num_taken)} in all"
            ) from problem
        self._taken_at.append((now, problem.place))
        self.num_taken += 1


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
