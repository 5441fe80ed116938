"""Skips updates that would spoil a learner for good; counts and logs them.

A reward of 1e30 is a finite number, and so is the gradient that it causes. The gradient's square is
not: Adam's mean of squared gradients is infinite from then on, and the parameter never moves again.
Clipping hides this, since it keeps the gradient's direction and shortens it to a length of 1.
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
"""Name of a policy's metric, which is recorded from the first skipped update on."""

MAX_GRADIENT = 1e12
"""Largest norm of a parameter's gradient. Optimizers add up squares: 1e24 is 14 orders of magnitude
below the end of float32, 3.4e38. Sane gradients, even of returns of millions, are far below."""

MAX_LOSS = MAX_GRADIENT**2
"""Largest loss. A squared error has a gradient of about its root; where that is clipped (Huber),
the loss still shows an absurd number. So does an optimizer's mean of squares."""

MAX_SKIPPED = 10
"""Most skipped updates in a row; after one more the learner has diverged. Batches of new data are
soon free of a number that came once."""

MAX_SKIPPED_FROM_REPLAY = 100
"""Most skipped updates in a row of a learner with a replay, which draws a number again and again:
in more than half of the updates while the replay is small."""

LARGE = 1e6
"""A number of this size is named as the likely cause; else the learning rate is."""


Number = tuple[float, str]
"""A number, with words for what it is."""


class SkippedUpdates:
    """Counts skipped updates by policy; logs the first, the tenth, the hundredth and so on.

    Args:
        learns_from: see `Trainer.learns_from`.

    Attributes:
        most: most skipped updates in a row; after one more the learner has diverged.
        warnings: the server's, which the server sets.
    """

    def __init__(self, learns_from: str) -> None:
        self.most = MAX_SKIPPED_FROM_REPLAY if learns_from == "replay" else MAX_SKIPPED
        self.warnings = Warnings()
        self.num: Counter[str] = Counter()
        self._num_in_a_row: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def end_row(self, policy_id: str) -> None:
        """Notes an update that was not skipped."""
        self._num_in_a_row[policy_id] = 0

    def add(self, policy_id: str, batch: int, why: Callable[[], str]) -> None:
        """Counts a skipped update.

        Args:
            policy_id: the policy.
            batch: number of the batch; its updates count once in the row.
            why: returns a sentence with the cause; called if it is logged.

        Raises:
            LearnerDiverged: too many updates in a row were skipped.
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
        found: the largest numbers in its batch, with words for each.
        before: the largest numbers of all earlier batches, likewise.
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
    """Returns the absolute value of a number; infinity for NaN."""
    return math.inf if math.isnan(number) else abs(number)


def largest_of(rows: Any, what: str) -> Iterator[Number]:
    """Yields the largest number of each array or tensor in dicts and lists, each with `what`."""
    if isinstance(rows, Mapping):
        for part in rows.values():
            yield from largest_of(part, what)
    elif rows is not None and len(rows):
        values = np.asarray(rows.cpu() if hasattr(rows, "cpu") else rows, np.float64)
        yield max(float(values.max()), float(values.min()), key=size_of), what
