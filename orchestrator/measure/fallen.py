"""Whether a learner earns less at the end of a run than at its own beginning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from muxrl.orchestrator.measure.against_random import AgainstRandom
from muxrl.orchestrator.measure.number_text import interval, number
from muxrl.orchestrator.records.recorded_run import TrainingCurve

_BLOCKS = 10
_LEAST_RECORDS = 2 * _BLOCKS
_NOTICEABLE = 2.5
"""Typical steps from block to block. Were they noise alone, one curve in sixty would fall so far; a
curve that falls at once is three of them lower."""


def find_fall(
    curve: Sequence[AgainstRandom], last: AgainstRandom | None, training: Sequence[TrainingCurve]
) -> str:
    """Returns from where to where a server's return fell, in words; "" if it did not.

    Evaluations decide, if there are two: the intervals of first and last do not overlap. Else
    the train returns do: in each seed, the last tenth of the records is far below the first.

    Args:
        curve: its evaluations, by env steps.
        last: the final one.
        training: for each seed.
    """
    if curve and last is not None and last.env_steps > curve[0].env_steps:
        first = curve[0]
        if not last.learned.high < first.learned.low:
            return ""
        return (
            f"evaluated at {interval(last.learned, last.unit)} after {last.env_steps:,.0f} env "
            f"steps, at {interval(first.learned, first.unit)} after {first.env_steps:,.0f}"
        )
    ends = [_fall(one) for one in training]
    fallen = [both for both in ends if both is not None]
    if not fallen or len(fallen) < len(ends):
        return ""
    before, after = np.mean(fallen, axis=0)
    return (
        f"train return {number(float(after))} in the last tenth of its iterations, "
        f"{number(float(before))} in the first"
    )


def _fall(curve: TrainingCurve) -> tuple[float, float] | None:
    """Returns the means of the first and the last tenth, if the last is noticeably lower.

    Records are means over the same recent episodes, in part, so their own deviation says little of
    how far they wander; the steps between the means of tenths do.
    """
    if len(curve.returns) < _LEAST_RECORDS:
        return None
    means = [float(block.mean()) for block in np.array_split(curve.returns, _BLOCKS)]
    step = float(np.sqrt(np.mean([(b - a) ** 2 for a, b in pairwise(means)])))
    is_fallen = means[0] - means[-1] > _NOTICEABLE * step > 0
    return (means[0], means[-1]) if is_fallen else None
