"""Updates that would spoil a learner for good are left out, counted and said.

One reward of 1e30 is a finite number, and so is the gradient that comes of it. Its square is not:
Adam's mean of squared gradients is infinite from then on, and the parameter never moves again.
Clipping hides it, since what is clipped has the same direction with a length of 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from muxrl.servers.episodes.warnings import Warnings
from muxrl.servers.training.policies import LearnerDiverged

NUM_SKIPPED_UPDATES = "num_skipped_updates"
"""A policy's metric, from the first one on."""

MAX_GRADIENT = 1e12
"""Norm of a parameter's gradient. Optimizers add up squares: 1e24 leaves 14 orders of magnitude
below the end of float32, 3.4e38. Sane gradients, of returns of millions too, are far below."""

MAX_LOSS = MAX_GRADIENT**2
"""A squared error has a gradient of about its root. Where that is cut (Huber) the loss still shows
what was absurd. So does an optimizer's mean of squares."""

MAX_SKIPPED = 10
"""In a row; with one more the learner has diverged. Batches of new data are soon free of a number
that came once."""

MAX_SKIPPED_FROM_REPLAY = 100
"""From a replay it is drawn again and again, in more than half of the updates while the replay is
small."""

LARGE = 1e6
"""From here on a number is named as the likely cause; below it, the learning rate is."""


Number = tuple[float, str]
"""With what it is."""


class SkippedUpdates:
    """Counts them by policy, and says the first, the tenth, the hundredth and so on.

    Args:
        learns_from: see `Trainer.learns_from`.

    Attributes:
        most: in a row; with one more the learner has diverged.
        warnings: of the server, which sets it.
    """

    def __init__(self, learns_from: str) -> None:
        self.most = MAX_SKIPPED_FROM_REPLAY if learns_from == "replay" else MAX_SKIPPED
        self.warnings = Warnings()
        self.num: Counter[str] = Counter()
        self._num_in_a_row: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def end_row(self, policy_id: str) -> None:
        """Notes that an update was sound."""
        self._num_in_a_row[policy_id] = 0

    def add(self, policy_id: str, batch: int, why: Callable[[], str]) -> None:
        """Counts one.

        Args:
            policy_id: whose.
            batch: a number of the batch; all updates with one count once in the row.
            why: returns a sentence; called if it is said.

        Raises:
            LearnerDiverged: there have been too many in a row.
        """
        self.num[policy_id] += 1
        in_a_row = self._num_in_a_row[policy_id]
        if self._last.get(policy_id) != batch:
            self._last[policy_id] = batch
            self._num_in_a_row[policy_id] = in_a_row + 1
        else:
            in_a_row -= 1
        has_diverged = in_a_row >= self.most
        parsed = ""
        if not has_diverged and math.log10(self.num[policy_id]).is_integer():
            parsed = f"policy {policy_id!r}: an update is skipped, the weights stay as they are: "
            parsed += why()
        self.warnings.add("updates skipped", parsed)
        if has_diverged:
            raise LearnerDiverged(
                f"more than {self.most} updates of policy {policy_id!r} in a row were skipped: its "
                f"learner has diverged; {why()}"
            )


def cause_of(found: Iterable[Number], before: Iterable[Number] = ()) -> str:
    """Returns the likely cause of an unsound update.

    Args:
        found: the largest numbers in its batch, with what each is.
        before: those that were ever learned from.
    """
    nothing = 0.0, "the reward"
    largest, earlier = (
        max((nothing, *numbers), key=lambda one: size_of(one[0])) for numbers in (found, before)
    )
    for where, (number, what) in (("in its batch", largest), ("so far", earlier)):
        if size_of(number) >= LARGE:
            return f"the largest number {where} is {what}, {number:.3g}"
    return (
        f"no number in its batch is larger than {largest[0]:.3g}, so try a lower lr, or clip "
        "gradients (grad_clip)"
    )


def size_of(number: float) -> float:
    """Returns a number's distance from 0; of NaN infinity."""
    return math.inf if math.isnan(number) else abs(number)


def largest_of(rows: Any, what: str) -> Iterator[Number]:
    """Yields the largest number of each array or tensor in dicts and lists, with `what` it is."""
    if isinstance(rows, Mapping):
        for part in rows.values():
            yield from largest_of(part, what)
    elif rows is not None and len(rows):
        values = np.asarray(rows.cpu() if hasattr(rows, "cpu") else rows, np.float64)
        yield max(float(values.max()), float(values.min()), key=size_of), what
