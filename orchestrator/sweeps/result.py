"""What came of a sweep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator import exit_codes
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.load import load_written
from muxrl.orchestrator.sweeps.schema import SweepConfig

if TYPE_CHECKING:
    from pandas import DataFrame


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
            return exit_codes.INTERRUPTED
        return exit_codes.FAILED if self.failed else exit_codes.DONE

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

    def frame(self) -> DataFrame:
        """Returns a row for each trial.

        Columns: `trial`, `assignment`, one for each role (its template) and each parameter (by its
        key), `seed`, `status`, `metric`, `metric_source`, `env_steps`, `time_s`, `cpu_s`,
        `run_dir` (absolute) and `cause`. pandas is imported when this is called.
        """
        from pandas import DataFrame

        rows: list[dict[str, Any]] = []
        roles = list(dict.fromkeys(role for trial in self.trials for role in trial.roles))
        keys = list(dict.fromkeys(key for trial in self.trials for key in trial.parameters))
        for trial in self.trials:
            rows.append(
                {
                    "trial": trial.id,
                    "assignment": trial.assignment,
                    **{role: trial.roles.get(role) for role in roles},
                    **{key: trial.parameters.get(key) for key in keys},
                    "seed": trial.seed,
                    "status": trial.status,
                    "metric": trial.metric,
                    "metric_source": trial.metric_source,
                    "env_steps": trial.env_steps,
                    "time_s": trial.time_s,
                    "cpu_s": trial.cpu_s,
                    "run_dir": None if trial.run_dir is None else self.sweep_dir / trial.run_dir,
                    "cause": trial.cause,
                }
            )
        return DataFrame(rows)

    def evaluations(self) -> DataFrame:
        """Returns every evaluated return of the trials that are done; see `records.frames`."""
        from muxrl.orchestrator.records.frames import evaluation_frame

        return evaluation_frame(self.run_dirs())

    def counts(self) -> str:
        """Returns how many trials stand how, for people."""
        counted = Counter(trial.status.replace("_", " ") for trial in self.trials)
        return ", ".join(f"{number} {status}" for status, number in counted.items())
