"""The folder of a sweep with all that is known of it, and the record of each trial.

::

    <name>-YYYYmmdd-HHMMSS/
    ├── sweep.yaml      the sweep as it was resolved, its base experiment included
    ├── trials.jsonl    one line for each trial: its settings, status and result
    ├── runs/           one run directory for each trial, and one more for each new beginning
    ├── tune-.../       what Ray Tune writes: results as CSV and JSON, its own state
    └── lock            held by the process that runs the sweep, and says which that is

``trials.jsonl`` is replaced as a whole whenever a trial begins or ends, so that it can be read at
any time and loses nothing. For a trial that is not over it is only a copy: the trial's own run
tells how far it has come, and how it ended if its sweep was not there to write that down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from muxrl.orchestrator.config.load import load_written
from muxrl.orchestrator.errors import NotASweepDirectory, OtherFormat
from muxrl.orchestrator.records.run_directory import TRIALS_FILE, RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.storage.folders import Folder, next_path
from muxrl.orchestrator.storage.json_files import finite, write_text
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.orchestrator.sweeps.measure import progress_of
from muxrl.orchestrator.sweeps.schema import MetricConfig, SweepConfig
from muxrl.servers.checkpoints.formats import format_problem

Status = Literal["waiting", "running", "done", "stopped_early", "failed", "interrupted"]

_CONFIG_FILE = "sweep.yaml"
LAST_FILE = "trial.json"
"""File in a trial's run directory with its line, which it writes last; that it is there tells that
the trial has ended."""

_FORMAT = 1
"""Format of a line of ``trials.jsonl``; it grows if today's readers would misread a new one."""


@dataclass
class TrialRecord:
    """A trial's settings and what is known of it so far; a line of ``trials.jsonl``."""

    id: str
    """Names the trial's directory: number, assignment, seed."""
    assignment: str
    """Canonical string with the templates' names; "" if the trial's experiment was refused."""
    roles: RoleAssignment
    parameters: dict[str, Any]
    seed: int
    status: Status = "waiting"
    """"stopped_early": by the scheduler; "interrupted": together with the sweep."""
    run_dir: str | None = None
    """Relative to the sweep's directory; None: the trial has not begun."""
    metric: float | None = None
    """The newest value; for a trial that is done, of its last evaluation."""
    metric_source: str = ""
    """"evaluation" or "training"."""
    env_steps: int = 0
    time_s: float = 0.0
    """Seconds of training."""
    cpu_s: float = 0.0
    """Processor seconds of the trial's servers and simulations."""
    cause: str = ""
    """Why the trial failed, in a sentence that names the log."""

    @property
    def is_finished(self) -> bool:
        """Whether the trial ran to its end, or until the scheduler stopped it."""
        return self.status in ("done", "stopped_early")

    @property
    def is_over(self) -> bool:
        """Whether the trial is finished or has failed."""
        return self.is_finished or self.status == "failed"

    def to_json(self) -> str:
        """Returns the record as one line."""
        return json.dumps({"format": _FORMAT, **finite(asdict(self))}, allow_nan=False)


def counts_text(counts: Mapping[str, int]) -> str:
    """Returns the number of trials by status, for people: "3 done, 1 stopped early"."""
    return ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in counts.items())


@dataclass(frozen=True)
class SweepDirectory(Folder):
    """The folder of one sweep. `make` makes a new one, `open` reads one back."""

    _INNER = ("runs",)
    _FILES = (_CONFIG_FILE, TRIALS_FILE)
    _NOT_ONE = NotASweepDirectory

    @property
    def config_file(self) -> Path:
        """The file with the sweep as it was resolved."""
        return self.path / _CONFIG_FILE

    @property
    def runs(self) -> Path:
        """The folder of the trials' run directories."""
        return self.path / "runs"

    def trials(self) -> list[TrialRecord]:
        """Returns all trials as they stand now, in their order.

        Raises:
            NotASweepDirectory: ``trials.jsonl`` cannot be read.
            OtherFormat: a newer muxrl wrote it.
        """
        try:
            lines = (self.path / TRIALS_FILE).read_text(encoding="utf-8").splitlines()
            trials = [json.loads(line) for line in lines if line.strip()]
            for trial in trials:  # the oldest sweeps have no format
                if problem := format_problem(trial.get("format", 1), _FORMAT):
                    raise OtherFormat(self.path, problem)
            records = [msgspec.convert(trial, TrialRecord) for trial in trials]
        except (OSError, ValueError, TypeError) as error:
            raise NotASweepDirectory(
                self.path, f"its {TRIALS_FILE} cannot be read: {error}"
            ) from error
        return [self.current(record) for record in records]

    def write_trials(self, records: Sequence[TrialRecord]) -> None:
        """Writes ``trials.jsonl``.

        Raises:
            OSError: the folder cannot be written to.
        """
        write_text(self.path / TRIALS_FILE, "".join(f"{r.to_json()}\n" for r in records))

    def new_run(self, trial_id: str) -> Path:
        """Returns the path of a new run directory for a trial; later ones end in ``-2``..."""
        return next_path(self.runs, trial_id)

    def run_of(self, record: TrialRecord) -> Path | None:
        """Returns a trial's run directory; None if it has none yet."""
        return None if record.run_dir is None else self.path / record.run_dir

    @cached_property
    def metric(self) -> MetricConfig:
        """The number by which the sweep's trials are compared.

        Raises:
            ConfigError: ``sweep.yaml`` cannot be read.
        """
        return load_written(self.config_file, SweepConfig).metric

    def current(self, record: TrialRecord) -> TrialRecord:
        """Returns a trial's record, brought up to date from its run unless the trial is over.

        The record of a trial that is over stays as it was written: only the sweep knows whether a
        trial was stopped early, or failed without leaving a trace.

        Raises:
            NotARunDirectory, MalformedMetrics: a file of its run is broken.
        """
        run_dir = self.run_of(record)
        if record.is_over or run_dir is None or not run_dir.is_dir():
            return record
        run = RunDirectory(run_dir)
        record = replace(record, **progress_of(run, self.metric))
        is_cut = record.status == "interrupted" or (
            record.status == "running" and not self.is_running
        )
        if is_cut and (own := read_status(run)) is not None and own.is_over:
            return replace(record, status=cast("Status", own.state_now), cause=own.cause)
        return record
