"""Warnings that a log has and that readers of results must know; a server's are in its `Status`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from muxrl.protocol.messages import ServerWarning

logger = logging.getLogger(__name__)

_MAX_CHARS = 500
"""Most characters of a warning's text, since texts are sent with each status."""


class Warnings:
    """Counts warnings by kind, with the time and text of each first one; any thread may add one.

    Args:
        env_steps: returns the number of env steps of training.
    """

    def __init__(self, env_steps: Callable[[], int] = lambda: 0) -> None:
        self._env_steps = env_steps
        self._found: dict[str, ServerWarning] = {}

    def add(
        self, what: str, text: str = "", *, num: int = 1, error: Exception | None = None
    ) -> None:
        """Counts and logs a warning.

        Args:
            what: the kind in a few words, or all there is to say; there must be few kinds.
            text: a sentence; "": the warning is only counted.
            num: how often it happened.
            error: the cause; the log has the traceback of the first one.
        """
        if (before := self._found.get(what)) is None:
            now = ServerWarning(what, num, self._env_steps(), text[:_MAX_CHARS])
        else:
            now = replace(before, num=before.num + num)
        self._found[what] = now
        if text:
            so_far = f" ({now.num:,} so far)" if before else ""
            logger.warning("%s%s", text, so_far, exc_info=None if before else error)

    @property
    def found(self) -> list[ServerWarning]:
        """One warning of each kind."""
        return list(self._found.values())

    def restore(self, found: Iterable[ServerWarning]) -> None:
        """Adds warnings that were found before all that are here."""
        for one in found:
            since = self._found.get(one.what)
            self._found[one.what] = replace(one, num=one.num + since.num) if since else one
