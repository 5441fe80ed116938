"""The result of a sweep, running or over; prints trials before and after the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.config.load import load_written
from muxrl.orchestrator.errors import ExitCode
from muxrl.orchestrator.measure.number_text import MISSING, whole
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.table import Column, Grid, Row, grid, stacked
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord, counts_text
from muxrl.orchestrator.sweeps.schema import SweepConfig

if TYPE_CHECKING:
    from pandas import DataFrame

_OUTCOME = ("seed", "status", "metric", "metric_source", "env_steps", "time_s", "cpu_s")
_SHOWN = ("status", "env_steps", "metric", "metric_source")
_UNKNOWN = {"lines": (MISSING,), "value": None}
_MOST_COLUMNS = 3  # of parameters on the terminal; more leave no room for numbers
_STYLES = {"done": "green", "stopped_early": "yellow", "failed": "red"}


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep, as they stand now."""

    sweep_dir: Path
    trials: tuple[TrialRecord, ...]
    """In the order of the table."""
    config: SweepConfig = field(repr=False)
    is_interrupted: bool = False

    @classmethod
    def read(cls, sweep_dir: str | Path) -> SweepResult:
        """Reads a sweep back from its directory, running or over.

        Raises:
            NotASweepDirectory: the folder is not a sweep's.
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
        """Exit code of the sweep's process: 0 all done, 1 a trial failed, 130 interrupted."""
        if self.is_interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.FAILED if self.failed else ExitCode.DONE

    def best(self) -> TrialRecord | None:
        """Returns the trial that is done and has the best metric; None if there is none.

        One trial is one seed, and the best of many trials is partly luck. `frame` has all trials.
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
        """Returns the view in a notebook: a row for each trial, and why trials failed."""
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

        rows = _rows(self.trials, self.sweep_dir)
        columns = rows[0] if rows else _rows([TrialRecord("", "", {}, {}, 0)])[0]
        return frame_of(list(columns), (list(row.values()) for row in rows))

    def grid(self) -> Grid:
        """Returns the shown table, with a row for each trial."""
        return _grid(self.trials, _SHOWN, self.config.metric.title)

    def evaluations(self) -> DataFrame:
        """Returns every evaluated return of the trials that are done; see `evaluation_frame`."""
        from muxrl.orchestrator.records.frames import evaluation_frame

        return evaluation_frame(self.run_dirs())

    def training(self) -> DataFrame:
        """Returns the training metrics of the trials that are done; see `training_frame`."""
        from muxrl.orchestrator.records.frames import training_frame

        return training_frame(self.run_dirs())

    def counts(self) -> str:
        """Returns the number of trials by status, for people."""
        return counts_text(Counter(trial.status for trial in self.trials))


def print_trials(trials: Sequence[TrialRecord], console: Console) -> None:
    """Prints the trials that a sweep would run."""
    console.print(grid_table(_grid(trials, is_narrow=True), f"{len(trials)} trials"))


def print_result(result: SweepResult, console: Console) -> None:
    """Prints the status and metric of all trials, and why trials failed."""
    found = _grid(result.trials, _SHOWN, result.config.metric.title, is_narrow=True)
    console.print(grid_table(found, f"{result.sweep_dir.name}: {result.counts()}"))
    for trial in result.failed:
        console.print(
            Text(f"{trial.id} failed: {trial.cause}", style="red"), soft_wrap=True, highlight=False
        )


def _rows(trials: Sequence[TrialRecord], sweep_dir: Path = Path()) -> list[dict[str, Any]]:
    """Returns a row for each trial, with the roles and parameters of all trials."""
    roles, keys = _names(t.roles for t in trials), _names(t.parameters for t in trials)
    return [
        {
            "trial": trial.id,
            "assignment": trial.assignment,
            **{role: trial.roles.get(role) for role in roles},
            **{key: trial.parameters.get(key) for key in keys},
            **{name: getattr(trial, name) for name in _OUTCOME},
            "run_dir": trial.run_dir and sweep_dir / trial.run_dir,
            "cause": trial.cause,
        }
        for trial in trials
    ]


def _grid(
    trials: Sequence[TrialRecord],
    outcome: Sequence[str] = (),
    metric: str = "",
    *,
    is_narrow: bool = False,
) -> Grid:
    """Returns a table of trials with their settings and the columns of `outcome`.

    If it `is_narrow`, all parameters share one column once there are more than a few.
    """

    def parameter(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    def listed(row: Row) -> Mapping[str, Any]:
        set_here = {key.split(".", 1)[-1]: row[key] for key in keys if row[key] is not None}
        return {"lines": (", ".join(f"{k}={parameter(v)}" for k, v in set_here.items()),)}

    roles, keys = _names(t.roles for t in trials), _names(t.parameters for t in trials)
    columns: dict[str, Column | str] = {
        # The other columns have the rest of the id.
        "trial": Column(shown=lambda t: t.partition("-")[0], css="text", is_whole=True),
        **{role: Column(css="text") for role in roles},
        **{key: Column(key.split(".", 1)[-1], parameter, css="text") for key in keys},
        "parameters": Column(cell=listed, css="text"),
        "seed": Column(css="text"),
        "status": Column(
            shown=lambda status: status.replace("_", " "),
            cell=lambda row: {"style": _STYLES.get(row["status"], "")},
            css="text",
            is_whole=True,
        ),
        "metric": metric,
        "metric_source": Column("of", css="text", is_whole=True),
        "env_steps": Column("env steps", whole, lambda r: {} if r["run_dir"] else _UNKNOWN),
    }
    if not is_narrow or len(keys) <= _MOST_COLUMNS:
        return grid(_rows(trials), ["trial", *roles, *keys, "seed", *outcome], columns)
    whole_rows = grid(_rows(trials), ["trial", "seed", *roles, "parameters", *outcome], columns)
    pairs = ("status env_steps", "metric metric_source") if outcome else ()
    return stacked(whole_rows, ("trial seed", *roles, "parameters", *pairs))


def _names(of_trials: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in of_trials for name in one))
