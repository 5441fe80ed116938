"""Learning curves in numbers: area, first evaluation above a threshold, bands over runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muxrl.orchestrator.records.agent_returns import Floats
from muxrl.orchestrator.reports.rliable import interquartile_mean_interval
from muxrl.orchestrator.reports.statistics import Estimate

Axis = Literal["env_steps", "time_s"]
_NUM_PLACES = 60  # of a drawn curve; few enough for a small file, more than there are evaluations
_NUM_RESAMPLES = 1_000  # a band's edge drawn a pixel off is no loss


@dataclass(frozen=True)
class Curve:
    """One run's evaluations, by env steps; all arrays are ``[num_evaluations]``.

    Attributes:
        env_steps: of training before each, strictly rising.
        time_s: seconds of training before each, NaN where they were not recorded.
        returns: the mean over its episodes.
    """

    env_steps: Floats
    time_s: Floats
    returns: Floats

    def area(self, start: float, stop: float) -> float:
        """The area under the curve from `start` to `stop`, divided by their distance.

        So it is a mean height, in the unit of a return; by trapezoids between evaluations. NaN if
        the curve does not reach from `start` to `stop`, or has one evaluation.
        """
        if len(self.returns) < 2 or not self.env_steps[0] <= start < stop <= self.env_steps[-1]:
            return math.nan
        inside = self.env_steps[(self.env_steps > start) & (self.env_steps < stop)]
        places = np.concatenate([[start], inside, [stop]])
        heights = np.interp(places, self.env_steps, self.returns)
        return float(np.trapezoid(heights, places) / (stop - start))

    def first_at(self, threshold: float) -> int | None:
        """The index of the first evaluation whose return is at least `threshold`, None: none is.

        Nothing is interpolated, since nothing was measured between two evaluations.
        """
        reached = np.flatnonzero(self.returns >= threshold)
        return int(reached[0]) if len(reached) else None

    def heights(self, places: Floats, axis: Axis) -> Floats:
        """The returns at `places`, on straight lines between evaluations."""
        return np.interp(places, getattr(self, axis), self.returns)


@dataclass(frozen=True)
class CurveBand:
    """Interquartile means over runs along an axis, with their intervals."""

    places: Floats
    estimates: tuple[Estimate, ...]


def band(curves: Sequence[Curve], axis: Axis) -> CurveBand | None:
    """The interquartile mean over runs, over the part of the axis that all curves cover.

    Args:
        curves: of runs that differ in nothing but the seed.
        axis: the horizontal one.

    Returns:
        None where there is nothing to draw: a run with one evaluation, or without known times.
    """
    if not curves or any(len(curve.returns) < 2 for curve in curves):
        return None
    ends = [(getattr(curve, axis)[0], getattr(curve, axis)[-1]) for curve in curves]
    start, stop = max(first for first, _ in ends), min(last for _, last in ends)
    if not stop > start:  # NaN, too
        return None
    # At one run's own evaluations; over time, runs' evaluations differ, so a grid is added.
    sparsest = min(curves, key=lambda curve: len(curve.returns))
    own = getattr(sparsest, axis)
    own = own[(own > start) & (own < stop)]
    places = np.unique(np.concatenate([[start, stop], own]))
    if axis == "time_s":
        places = np.unique(np.concatenate([places, np.linspace(start, stop, _NUM_PLACES)]))
    table = np.array([curve.heights(places, axis) for curve in curves])
    estimates = tuple(
        interquartile_mean_interval([column], num_resamples=_NUM_RESAMPLES) for column in table.T
    )
    return CurveBand(places, estimates)
