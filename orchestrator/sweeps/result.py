"""The result of a sweep, running or over; and trials on the terminal, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muxrl.orchestrator.errors import ExitCode
from muxrl.orchestrator.measure.number_text import MISSING, number
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord, counts_text
from muxrl.orchestrator.sweeps.load import load_written
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
        return cls(folder.path, tuple(folder.trials()), load_written(folder.config_file))

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
        from muxrl.orchestrator.reports.table import Cell, Grid, GridRow, Heading

        headings = [*_headings(self.trials), "status", "env steps", self.config.metric.title, "of"]
        rows = [[*_cells(trial, self.trials), *_outcome(trial)] for trial in self.trials]
        grid = Grid(
            tuple(map(Heading, headings)), tuple(GridRow(tuple(map(Cell, row))) for row in rows)
        )
        causes = [f"{trial.id} failed: {trial.cause}" for trial in self.failed]
        title = f"{self.sweep_dir.name}: {self.counts()}"
        return notebook_html(title, causes, [[grid]])

    def frame(self) -> DataFrame:
        """Returns a row for each trial.

        Columns: `trial`, `assignment`, one for each role (its template) and each parameter (by its
        key), `seed`, `status`, `metric`, `metric_source`, `env_steps`, `time_s`, `cpu_s`,
        `run_dir` (absolute) and `cause`. pandas is imported when this is called.
        """
        from muxrl.orchestrator.records.frames import frame_of

        roles, keys = _roles(self.trials), _keys(self.trials)
        known = ("seed", "status", "metric", "metric_source", "env_steps", "time_s", "cpu_s")
        return frame_of(
            ["trial", "assignment", *roles, *keys, *known, "run_dir", "cause"],
            (
                [
                    *(trial.id, trial.assignment),
                    *(trial.roles.get(role) for role in roles),
                    *(trial.parameters.get(key) for key in keys),
                    *(getattr(trial, name) for name in known),
                    None if trial.run_dir is None else self.sweep_dir / trial.run_dir,
                    trial.cause,
                ]
                for trial in self.trials
            ),
        )

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
    table = _table(f"{len(trials)} trials", trials)
    for trial in trials:
        table.add_row(*_cells(trial, trials))
    console.print(table)


def print_result(result: SweepResult, console: Console) -> None:
    """Prints the status and metric of all trials, and why some failed."""
    metric = result.config.metric
    table = _table(f"{result.sweep_dir.name}: {result.counts()}", result.trials)
    table.add_column("status", no_wrap=True)
    table.add_column("env steps", justify="right", no_wrap=True)
    table.add_column(metric.title, justify="right", no_wrap=True)
    table.add_column("of", no_wrap=True)
    for trial in result.trials:
        status, *others = _outcome(trial)
        shown = Text(status, style=_STYLES.get(trial.status, ""))
        table.add_row(*_cells(trial, result.trials), shown, *others)
    console.print(table)
    for trial in result.failed:
        console.print(
            Text(f"{trial.id} failed: {trial.cause}", style="red"), soft_wrap=True, highlight=False
        )


def _table(title: str, trials: Sequence[TrialRecord]) -> Table:
    table = plain_table(title)
    first, *others = _headings(trials)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, overflow="fold")
    return table


def _headings(trials: Sequence[TrialRecord]) -> list[str]:
    keys = [key.split(".", 1)[-1] for key in _keys(trials)]
    return ["trial", *_roles(trials), *keys, "seed"]


def _outcome(trial: TrialRecord) -> list[str]:
    return [
        trial.status.replace("_", " "),
        f"{trial.env_steps:,}" if trial.run_dir else MISSING,
        number(trial.metric),
        trial.metric_source or MISSING,
    ]


def _cells(trial: TrialRecord, trials: Sequence[TrialRecord]) -> list[str]:
    # The number says which one it is; the rest of the id stands in the other columns.
    return [
        trial.id.partition("-")[0],
        *(trial.roles.get(role, MISSING) for role in _roles(trials)),
        *(_shown(trial.parameters.get(key)) for key in _keys(trials)),
        str(trial.seed),
    ]


def _roles(trials: Sequence[TrialRecord]) -> list[str]:
    return list(dict.fromkeys(role for trial in trials for role in trial.roles))


def _keys(trials: Sequence[TrialRecord]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.parameters))


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:.3g}" if isinstance(value, float) else str(value)
