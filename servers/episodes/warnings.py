"""What a log warns of and whoever reads the results has to know; a server's is in its `Status`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from muxrl.protocol.messages import ServerWarning

logger = logging.getLogger(__name__)

_MAX_CHARS = 500
"""Of a text, which is sent with each status."""


class Warnings:
    """Of each kind how often, since when, and the first sentence; any thread may add one.

    Args:
        env_steps: returns those of training.
    """

    def __init__(self, env_steps: Callable[[], int] = lambda: 0) -> None:
        self._env_steps = env_steps
        self._found: dict[str, ServerWarning] = {}

    def add(
        self, what: str, text: str = "", *, num: int = 1, error: Exception | None = None
    ) -> None:
        """Counts and logs.

        Args:
            what: the kind, in few words, of which there are few; or all there is to say.
            text: a sentence; "": it is only counted.
            num: how often it happened.
            error: its cause; the log has the traceback of the first.
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
        """One of each kind."""
        return list(self._found.values())

    def restore(self, found: Iterable[ServerWarning]) -> None:
        """Adds what was found before all that is here."""
        for one in found:
            since = self._found.get(one.what)
            self._found[one.what] = replace(one, num=one.num + since.num) if since else one
