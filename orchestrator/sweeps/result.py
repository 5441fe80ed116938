"""The result of a sweep, running or over; and trials on the terminal, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.config.load import load_written
from muxrl.orchestrator.errors import ExitCode
from muxrl.orchestrator.measure.number_text import MISSING
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.table import Column, Grid, Table
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord, counts_text
from muxrl.orchestrator.sweeps.schema import SweepConfig

if TYPE_CHECKING:
    from pandas import DataFrame

_STYLES = {"done": "green", "stopped_early": "yellow", "failed": "red"}


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep, as they stand."""

    sweep_dir: Path
    trials: tuple[TrialRecord, ...]
    """In the order of the table."""
    config: SweepConfig = field(repr=False)
    is_interrupted: bool = False

    @classmethod
    def read(cls, sweep_dir: str | Path) -> SweepResult:
        """Reads a sweep back from its directory, running or over.

        Raises:
            NotASweepDirectory: it is none.
            OtherFormat: a newer muxrl wrote it.
            ConfigError: its sweep.yaml cannot be read.
        """
        folder = SweepDirectory.open(Path(sweep_dir))
        config = load_written(folder.config_file, SweepConfig)
        return cls(folder.path, tuple(folder.trials()), config)

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        """Trials that failed."""
        return tuple(trial for trial in self.trials if trial.status == "failed")

    @property
    def exit_code(self) -> int:
        """Of the process that ran it: 0 all done, 1 a trial failed, 130 interrupted."""
        if self.is_interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.FAILED if self.failed else ExitCode.DONE

    def best(self) -> TrialRecord | None:
        """Returns the finished trial with the best metric, None if there is none.

        One trial is one seed: the best of many is better by luck, too. `frame` has them all.
        """
        sign = 1 if self.config.metric.mode == "max" else -1
        known = [t for t in self.trials if t.status == "done" and t.metric is not None]
        return max(known, key=lambda trial: sign * (trial.metric or 0.0), default=None)

    def run_dirs(self) -> list[Path]:
        """Returns the run directories of the trials that are done."""
        return [
            self.sweep_dir / trial.run_dir
            for trial in self.trials
            if trial.status == "done" and trial.run_dir is not None
        ]

    def _repr_html_(self) -> str:
        """A notebook's view: a row for each trial, and why some failed."""
        from muxrl.orchestrator.reports.pages import notebook_html

        causes = [f"{trial.id} failed: {trial.cause}" for trial in self.failed]
        return notebook_html(f"{self.sweep_dir.name}: {self.counts()}", causes, self.grid())

    def frame(self) -> DataFrame:
        """Returns a row for each trial.

        Columns: `trial`, `assignment`, one for each role (its template) and each parameter (by its
        key), `seed`, `status`, `metric`, `metric_source`, `env_steps`, `time_s`, `cpu_s`,
        `run_dir` (absolute) and `cause`. pandas is imported when this is called.
        """
        from muxrl.orchestrator.records.frames import frame_of

        table = _table(self.trials, self.sweep_dir)
        rows = ([*record.values()] for record in table.records())
        return frame_of(table.names_in_files, rows)

    def grid(self) -> Grid:
        """Returns a row for each trial, as it is shown."""
        outcome = ("status", "env_steps", "metric", "metric_source")
        headings = {"metric": self.config.metric.title}
        table = _table(self.trials, self.sweep_dir)
        return table.grid([*_names(self.trials), *outcome], headings)

    def evaluations(self) -> DataFrame:
        """Returns every evaluated return of the trials that are done; see `evaluation_frame`."""
        from muxrl.orchestrator.records.frames import evaluation_frame

        return evaluation_frame(self.run_dirs())

    def training(self) -> DataFrame:
        """Returns the training metrics of the trials that are done; see `training_frame`."""
        from muxrl.orchestrator.records.frames import training_frame

        return training_frame(self.run_dirs())

    def counts(self) -> str:
        """Returns how many trials stand how, for people."""
        return counts_text(Counter(trial.status for trial in self.trials))


def print_trials(trials: Sequence[TrialRecord], console: Console) -> None:
    """Prints the trials that a sweep would run."""
    grid = _table(trials).grid(_names(trials))
    console.print(grid_table(grid, f"{len(trials)} trials"))


def print_result(result: SweepResult, console: Console) -> None:
    """Prints the status and metric of all trials, and why some failed."""
    console.print(grid_table(result.grid(), f"{result.sweep_dir.name}: {result.counts()}"))
    for trial in result.failed:
        console.print(
            Text(f"{trial.id} failed: {trial.cause}", style="red"), soft_wrap=True, highlight=False
        )


def _table(trials: Sequence[TrialRecord], sweep_dir: Path = Path()) -> Table[TrialRecord]:
    """Returns the table of trials, with a column for each role and each parameter."""
    return Table(
        (
            Column("trial", value=lambda t: t.id, shown=_number, css="text", is_whole=True),
            Column("assignment"),
            *(_role_column(role) for role in _roles(trials)),
            *(_parameter_column(key) for key in _keys(trials)),
            Column("seed", css="text"),
            Column(
                "status",
                shown=lambda status: status.replace("_", " "),
                style=lambda t: _STYLES.get(t.status, ""),
                css="text",
                is_whole=True,
            ),
            Column("metric"),
            Column("metric_source", "of", css="text", is_whole=True),
            Column(
                "env_steps",
                "env steps",
                text=lambda t: f"{t.env_steps:,}" if t.run_dir else MISSING,
            ),
            Column("time_s"),
            Column("cpu_s"),
            Column("run_dir", value=lambda t: t.run_dir and sweep_dir / t.run_dir),
            Column("cause"),
        ),
        tuple(trials),
    )


def _names(trials: Sequence[TrialRecord]) -> list[str]:
    """The columns that say which trial it is."""
    return ["trial", *_roles(trials), *_keys(trials), "seed"]


def _roles(trials: Sequence[TrialRecord]) -> list[str]:
    return list(dict.fromkeys(role for trial in trials for role in trial.roles))


def _keys(trials: Sequence[TrialRecord]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.parameters))


def _role_column(role: str) -> Column[TrialRecord]:
    return Column(role, value=lambda trial: trial.roles.get(role), css="text")


def _parameter_column(key: str) -> Column[TrialRecord]:
    def shown(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return Column(key, key.split(".", 1)[-1], lambda t: t.parameters.get(key), shown, css="text")


def _number(trial_id: str) -> str:
    """Says which trial it is; the rest of its id stands in the other columns."""
    return trial_id.partition("-")[0]
