"""Turns the files of a sweep, running or over, into plain data for the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.thinned import Point, Thinned
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.measure import Metric
from muxrl.orchestrator.sweeps.schema import MetricConfig
from muxrl.orchestrator.watch.tail import Tail

_READING_S = 0.5
"""Seconds to read trials' metrics in one call; the next call continues."""
_MOST_POINTS = 100
"""Points of a trial's small curve."""


class SweepView:
    """Reads a sweep's directory again and again, and the metrics of its trials.

    Args:
        path: the sweep's directory.

    Raises:
        NotASweepDirectory: the folder is not a sweep's.
        ConfigError: the sweep's ``sweep.yaml`` cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._folder = SweepDirectory.open(path)
        self._metric = self._folder.metric
        self._curves: dict[Path, _Curve] = {}

    def read(self) -> dict[str, Any]:
        """Returns the sweep as it stands now.

        Raises:
            NotASweepDirectory: ``trials.jsonl`` cannot be read.
            OSError: a file cannot be read.
        """
        trials = self._folder.trials()
        until_s = time.monotonic() + _READING_S
        curves = [self._curve(trial) for trial in trials]
        is_whole = True
        for trial, curve in zip(trials, curves, strict=True):
            if curve is not None and not (curve.is_final and trial.is_over):
                if time.monotonic() < until_s:
                    curve.read(trial.is_over)
                is_whole &= curve.is_read
        return {
            "kind": "sweep",
            "name": self._folder.name,
            "is_whole": is_whole,
            "metric": asdict(self._metric),
            "roles": list(dict.fromkeys(role for trial in trials for role in trial.roles)),
            "parameters": list(dict.fromkeys(key for trial in trials for key in trial.parameters)),
            "trials": [
                {**asdict(trial), "curve": curve.points if curve else []}
                for trial, curve in zip(trials, curves, strict=True)
            ],
        }

    def _curve(self, trial: TrialRecord) -> _Curve | None:
        """Returns a trial's curve; None before the trial has begun."""
        run_dir = self._folder.run_of(trial)
        if run_dir is None or not (run_dir / "plan.json").is_file():
            return None
        if run_dir not in self._curves:
            self._curves[run_dir] = _Curve(RunDirectory(run_dir), self._metric)
        return self._curves[run_dir]


class _Curve:
    """The sweep's metric over the env steps of one trial.

    The metric is computed as in `muxrl.orchestrator.sweeps.measure`: from evaluations if it is
    defined by them and there are any, otherwise from training episodes.
    """

    def __init__(self, folder: RunDirectory, metric: MetricConfig) -> None:
        of = Metric(metric, folder.read_plan().servers)
        self.is_read = self.is_final = False
        """Whether everything that is there was read; whether nothing more will come."""
        trained, evaluated = partial(_Values, of.trained), partial(_Values, of.evaluated)
        self._tails = [Tail(folder.metrics / "joint.jsonl", trained, JointRow)]
        if metric.source == "evaluation":
            file = folder.metrics / "evaluation.jsonl"
            self._tails.insert(0, Tail(file, evaluated, EvaluationRow))

    def read(self, is_over: bool) -> None:
        """Reads new rows; if the trial `is_over`, no more will come."""
        self.is_read = not any([tail.read() for tail in self._tails])  # noqa: C419, both
        self.is_final = self.is_read and is_over

    @property
    def points(self) -> Sequence[Point]:
        """Points ``(env_steps, metric)``."""
        curves = [tail.rows.curve.points for tail in self._tails]
        return next(filter(None, curves), [])


class _Values:
    """A curve of the rows that have a value."""

    def __init__(self, value_of: Callable[[Any], float | None]) -> None:
        self._value_of = value_of
        self.curve = Thinned(most=_MOST_POINTS)

    def add(self, row: JointRow | EvaluationRow) -> None:
        if (value := self._value_of(row)) is not None:
            self.curve.add((row.env_steps, value))
