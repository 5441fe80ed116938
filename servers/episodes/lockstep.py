"""Episodes that are in the same steps in rows, one after another, each in a row of its own.

What such a step does to an episode is the same for all of them, so it is written down once, here.
An episode takes in what it has missed when somebody asks for it (`ServedEpisode.catch_up`). Where
one ends, another one may take its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import compress
from operator import ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.messages import StepRows
from muxrl.servers.episodes.rows import RowStep

_MOST_KEPT = 256
"""Steps until all episodes have to record them: each holds the rows of all."""


class Lockstep:
    """What its episodes have in common.

    Args:
        step: the first one, in which all of them are.
        ids: of the episodes, by row.
        t: of each, int64 ``[E]``.
        now: time of the step.
    """

    def __init__(self, step: RowStep, ids: Sequence[str], t: NDArray[np.int64], now: float) -> None:
        self.last = step
        """The newest step, which may wait for its actions."""
        self.num_steps = 1
        self.ids = ids
        self.t = t
        self.last_seen = now
        self.left: set[int] = set()
        """Rows whose episodes are told of alone, or are over."""
        self._steps = [step]
        """Those that an episode may have missed."""

    def since(self, num_taken: int) -> list[RowStep]:
        """Returns the steps of an episode that has taken in so many."""
        num_missed = self.num_steps - num_taken
        return self._steps[len(self._steps) - num_missed :] if num_missed else []

    def find_changed(self, item: StepRows) -> list[int] | None:
        """Returns the rows of other episodes than before; None: it is no next step of the same.

        Whether those others are ready for it is not looked at.
        """
        ids = item.episode_ids
        if self.last.answer is None or len(ids) != len(self.ids):
            return None
        changed: list[int] = []
        if ids != self.ids:
            changed = list(compress(range(len(ids)), map(ne, ids, self.ids)))
            if 2 * len(changed) > len(ids) or len(set(ids)) < len(ids):
                return None
        if not self.left.issubset(changed):
            return None
        is_next = item.t == self.t + 1
        is_next[changed] = True
        return changed if is_next.all() else None

    def take(self, step: RowStep, item: StepRows, changed: Sequence[int], now: float) -> None:
        """Takes in the next step.

        Args:
            step: what was read of the item.
            item: see `find_changed`.
            changed: the rows of episodes that join.
            now: time of the step.
        """
        before: Sequence[Any] = self.last.episodes
        for row in changed:
            if row not in self.left:  # it waits, and goes on alone
                before[row].leave()
        self.last, self.ids, self.t, self.last_seen = step, item.episode_ids, item.t, now
        self.num_steps += 1
        self._steps.append(step)
        after: Sequence[Any] = step.episodes
        for row in changed:
            after[row].join(self, row)
            self.left.discard(row)

    def make_room(self, guarded: Callable[[str], AbstractContextManager[object]]) -> None:
        """Has its episodes record their steps, if there are many.

        Args:
            guarded: by episode id, what to do that in.
        """
        if len(self._steps) < _MOST_KEPT:
            return
        episodes: Sequence[Any] = self.last.episodes
        for row, episode in enumerate(episodes):
            if row not in self.left:
                with guarded(episode.episode_id):
                    episode.record_rows()
        self.forget()

    def forget(self) -> None:
        """Forgets all steps but the last: whoever is in them has taken them in."""
        del self._steps[:-1]
