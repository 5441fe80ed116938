"""The result of a run, or its state so far: returned by a launch, or read from its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from muxrl.orchestrator.errors import ExitCode, NotARunDirectory
from muxrl.orchestrator.measure.results import Report, results_of
from muxrl.orchestrator.records.metrics import last_row
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.rows import JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import State, read_status

if TYPE_CHECKING:
    from pandas import DataFrame

_EXIT_CODES: dict[State, int] = {
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.INTERRUPTED,
}


@dataclass(frozen=True)
class RunResult:
    """How a run ended, or its state so far, and what it learned."""

    run_dir: Path
    outcome: State
    """"done": a stop condition was reached; "failed": something died, or could not be saved;
    "interrupted": Ctrl-C, or the process was killed. A run that was read while it runs:
    "starting", "running" or "evaluating"."""
    problem: str
    """A sentence on why it is not "done", or was not evaluated; "" if all is well so far."""
    env_steps: int
    """Env steps of training, over all environments."""
    time_s: float
    """Seconds from the first training step to the last."""
    report: Report | None = field(repr=False)
    """The report; None if the run never began to play, or the report cannot be written."""

    @classmethod
    def read(cls, run_dir: str | Path) -> RunResult:
        """Reads a run from its directory, whether it goes on or has ended.

        Raises:
            NotARunDirectory: it is no run directory, or its run never began.
            OtherFormat: a newer muxrl wrote it.
            MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        """
        folder = RunDirectory.open(Path(run_dir))
        status = read_status(folder)
        if status is None:
            raise NotARunDirectory(folder.path, "it has no status.json: its run never began")
        state = status.state_now
        problem = status.cause
        if state != status.state:
            problem = f"its process was killed while the run was {status.state}"
        last = last_row(folder.metrics / "joint.jsonl", JointRow)
        return cls(
            folder.path,
            state,
            problem,
            status.env_steps if status.has_ended or last is None else last.env_steps,
            (last and last.time_s) or 0.0,
            None if last is None else results_of([RecordedRun.read(folder.path)]),
        )

    @property
    def exit_code(self) -> int:
        """Exit code for a process that ran it: 0 done or going on, 1 failed, 130 interrupted."""
        return _EXIT_CODES.get(self.outcome, ExitCode.DONE)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the report's sentences and its table."""
        from muxrl.orchestrator.reports.pages import notebook_html
        from muxrl.orchestrator.reports.run_tables import servers_grid

        title = f"{self.run_dir.name}: {self.outcome}, {self.env_steps:,} env steps"
        if self.report is None:
            return notebook_html(title, [self.problem], None)
        sentences = [self.problem] * bool(self.problem) + [*self.report.headline]
        return notebook_html(title, sentences, servers_grid(self.report), self.report.notes)

    def frame(self) -> DataFrame:
        """Returns the evaluations, a row for each episode and agent; see `evaluation_frame`."""
        from muxrl.orchestrator.records.frames import evaluation_frame

        return evaluation_frame([self.run_dir])

    def metrics(self) -> DataFrame:
        """Returns the simulation's metrics in evaluations; see `metric_frame`."""
        from muxrl.orchestrator.records.frames import metric_frame

        return metric_frame([self.run_dir])

    def training(self) -> DataFrame:
        """Returns the training metrics, a row for each iteration; see `training_frame`."""
        from muxrl.orchestrator.records.frames import training_frame

        return training_frame([self.run_dir])
