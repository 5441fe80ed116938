"""Trials on the terminal: before a sweep those to run, after it their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muxrl.orchestrator.reports.number_text import MISSING, number
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.sweeps.result import SweepResult
from muxrl.orchestrator.sweeps.trial_record import TrialRecord, TrialSpec

_STYLES = {"done": "green", "stopped_early": "yellow", "failed": "red"}


def print_trials(specs: Sequence[TrialSpec], console: Console) -> None:
    """Prints the trials that a sweep would run."""
    table = _table(f"{len(specs)} trials", specs)
    for spec in specs:
        table.add_row(*_cells(spec, specs))
    console.print(table)


def print_result(result: SweepResult, console: Console) -> None:
    """Prints the status and metric of all trials, and why some failed."""
    metric = result.config.metric
    table = _table(f"{result.sweep_dir.name}: {result.counts()}", result.trials)
    table.add_column("status", no_wrap=True)
    table.add_column("env steps", justify="right", no_wrap=True)
    table.add_column(f"return ({metric.of})", justify="right", no_wrap=True)
    table.add_column("of", no_wrap=True)
    for trial in result.trials:
        status = trial.status.replace("_", " ")
        table.add_row(
            *_cells(trial, result.trials),
            Text(status, style=_STYLES.get(trial.status, "")),
            f"{trial.env_steps:,}" if trial.run_dir else MISSING,
            number(trial.metric),
            trial.metric_source or MISSING,
        )
    console.print(table)
    for trial in result.failed:
        console.print(
            Text(f"{trial.id} failed: {trial.cause}", style="red"), soft_wrap=True, highlight=False
        )


def _table(title: str, trials: Sequence[TrialSpec | TrialRecord]) -> Table:
    table = plain_table(title)
    table.add_column("trial", no_wrap=True)
    for heading in (*_roles(trials), *(key.split(".", 1)[-1] for key in _keys(trials)), "seed"):
        table.add_column(heading, overflow="fold")
    return table


def _cells(trial: TrialSpec | TrialRecord, trials: Sequence[TrialSpec | TrialRecord]) -> list[str]:
    # The number says which one it is; the rest of the id stands in the other columns.
    trial_id = trial.trial_id if isinstance(trial, TrialSpec) else trial.id
    return [
        trial_id.partition("-")[0],
        *(trial.roles.get(role, MISSING) for role in _roles(trials)),
        *(_shown(trial.parameters.get(key)) for key in _keys(trials)),
        str(trial.seed),
    ]


def _roles(trials: Sequence[TrialSpec | TrialRecord]) -> list[str]:
    return list(dict.fromkeys(role for trial in trials for role in trial.roles))


def _keys(trials: Sequence[TrialSpec | TrialRecord]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.parameters))


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:.3g}" if isinstance(value, float) else str(value)
