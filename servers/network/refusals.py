"""What a server refused: counted by code, and told in its log, where `muxrl watch` shows it.

A client that makes a mistake makes it at every step, so the log gets the first refusal of a code,
and then at most one in ten seconds.
"""

from __future__ import annotations

import logging
import math
from collections import Counter

from muxrl.protocol.messages import ERROR_STORY_CHARS

logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0


class Refusals:
    """Of items and requests."""

    def __init__(self) -> None:
        self.by_code: Counter[int] = Counter()
        self._num_untold: Counter[int] = Counter()
        self._told_at: dict[int, float] = {}

    def add(self, code: int, story: str, now: float) -> None:
        """Counts a refusal.

        Args:
            code: see `muxrl.protocol.errors`.
            story: what its client is told; it may repeat what came, so the log has it in one line.
            now: monotonic seconds.
        """
        self.by_code[code] += 1
        if now - self._told_at.get(code, -math.inf) < _INTERVAL_S:
            self._num_untold[code] += 1
            return
        self._told_at[code] = now
        told = story[:ERROR_STORY_CHARS]
        num_untold = self._num_untold.pop(code, 0)
        logger.warning(
            "%d: %s%s",
            code,
            told if told.isprintable() else repr(told),
            f" ({num_untold} more of this code since the last one here)" if num_untold else "",
        )
