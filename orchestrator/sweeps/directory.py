"""The folder that holds all there is to know of a sweep, and the record of each trial.

::

    <name>-YYYYmmdd-HHMMSS/
    ├── sweep.yaml      the sweep as it was resolved, its base experiment included
    ├── trials.jsonl    one line for each trial: what it is, its status, its result
    ├── runs/           one run directory for each trial, and one more for each time it began anew
    ├── tune-.../       what Ray Tune writes: results as CSV and JSON, its own state
    ├── process.json    the process that runs the sweep, or was the last to
    └── lock            held by that process while it does

``trials.jsonl`` is replaced as a whole whenever a trial begins or ends, so that it can be read at
any time and never loses what it said before.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from muxrl.orchestrator.errors import (
    NotARunDirectory,
    NotASweepDirectory,
    OtherFormat,
    SweepIsRunning,
)
from muxrl.orchestrator.records.run_directory import (
    TRIALS_FILE,
    RunDirectory,
    make_next_folder,
    next_path,
    no_such_folder,
)
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.storage.json_files import finite, write_json, write_text
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.servers.checkpoints.folder_lock import held, is_held
from muxrl.servers.checkpoints.formats import format_problem

Status = Literal["waiting", "running", "done", "stopped_early", "failed", "interrupted"]

_CONFIG_FILE = "sweep.yaml"
_PROCESS_FILE = "process.json"
FINAL_RECORD_FILE = "trial.json"
"""In a trial's run directory: its record, written by the trial itself once it is over."""

_FORMAT = 1
"""Of a line of ``trials.jsonl``; one more where today's readers would not understand it."""


@dataclass
class TrialRecord:
    """A trial: what it is, and what is known of it so far; a line of ``trials.jsonl``."""

    id: str
    """Names its directory: number, assignment, seed."""
    assignment: str
    """Canonical, by the templates' names; "" of a trial whose simulation refused its arguments."""
    roles: RoleAssignment
    parameters: dict[str, Any]
    seed: int
    status: Status = "waiting"
    """"stopped_early" by the scheduler; "interrupted" with the sweep."""
    run_dir: str | None = None
    """Relative to the sweep's directory; None: the trial has not begun."""
    metric: float | None = None
    """The newest value; of a trial that is done, that of its last evaluation."""
    metric_source: str = ""
    """"evaluation" or "training"."""
    env_steps: int = 0
    time_s: float = 0.0
    """Of training."""
    cpu_s: float = 0.0
    """Processor seconds of its servers and simulations."""
    cause: str = ""
    """Why it failed, in a sentence that names the log."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: it ran to its end, or to where the scheduler ended it."""
        return self.status in ("done", "stopped_early")

    @property
    def is_over(self) -> bool:
        """Whether it is finished or has failed."""
        return self.is_finished or self.status == "failed"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrialRecord:
        """Returns the record that `to_json` wrote, once it is parsed.

        Raises:
            ValueError: a key is missing.
        """
        return msgspec.convert(values, cls)

    def to_json(self) -> str:
        """Returns the record as one line."""
        return json.dumps({"format": _FORMAT, **finite(asdict(self))}, allow_nan=False)


def counts_text(counts: Mapping[str, int]) -> str:
    """Returns how many trials stand how, for people: "3 done, 1 stopped early"."""
    return ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in counts.items())


@dataclass(frozen=True)
class SweepDirectory:
    """Where everything of one sweep lies. Make one with `create`, read one back with `open`."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> SweepDirectory:
        """Makes a new folder ``<name>-YYYYmmdd-HHMMSS`` under `root`.

        Raises:
            OSError: `root` cannot be written to.
        """
        return cls._with_runs(make_next_folder(root, f"{name}-{now:%Y%m%d-%H%M%S}"))

    @classmethod
    def create_at(cls, path: Path) -> SweepDirectory:
        """Makes exactly this folder.

        Raises:
            FileExistsError: it is there already.
            OSError: it cannot be made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        return cls._with_runs(path)

    @classmethod
    def _with_runs(cls, path: Path) -> SweepDirectory:
        (path / "runs").mkdir()
        return cls(path.resolve())

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """The sweep that was written to `path`.

        Raises:
            NotASweepDirectory: there is no such folder, or no trials in it.
        """
        if not path.is_dir():
            raise NotASweepDirectory(path, no_such_folder(path))
        for name in (_CONFIG_FILE, TRIALS_FILE):
            if not (path / name).is_file():
                raise NotASweepDirectory(path, f"it has no {name}")
        return cls(path.resolve())

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The sweep as it was resolved."""
        return self.path / _CONFIG_FILE

    @property
    def runs(self) -> Path:
        """The trials' run directories."""
        return self.path / "runs"

    @property
    def lock(self) -> Path:
        """The file that the process which runs the sweep holds."""
        return self.path / "lock"

    def trials(self) -> list[TrialRecord]:
        """Returns all trials as they stand now, in their order.

        Raises:
            NotASweepDirectory: ``trials.jsonl`` cannot be read.
            OtherFormat: a newer muxrl wrote it.
        """
        try:
            lines = (self.path / TRIALS_FILE).read_text(encoding="utf-8").splitlines()
            trials = [json.loads(line) for line in lines if line.strip()]
            for trial in trials:  # the first sweeps did not say it
                if problem := format_problem(trial.get("format", 1), _FORMAT):
                    raise OtherFormat(self.path, problem)
            return [self.current(TrialRecord.from_dict(trial)) for trial in trials]
        except (OSError, ValueError, TypeError) as error:
            raise NotASweepDirectory(
                self.path, f"its {TRIALS_FILE} cannot be read: {error}"
            ) from error

    def write_trials(self, records: Sequence[TrialRecord]) -> None:
        """Writes ``trials.jsonl``.

        Raises:
            OSError: the folder cannot be written to.
        """
        write_text(self.path / TRIALS_FILE, "".join(f"{r.to_json()}\n" for r in records))

    def new_run(self, trial_id: str) -> Path:
        """Returns a run directory that a trial does not have yet; later ones end in ``-2``..."""
        return next_path(self.runs, trial_id)

    def run_of(self, record: TrialRecord) -> Path | None:
        """Returns a trial's run directory, None if it has none yet."""
        return None if record.run_dir is None else self.path / record.run_dir

    def current(self, record: TrialRecord) -> TrialRecord:
        """Returns a trial as its run directory tells it, which may know more than the table.

        The process of the sweep, or of the trial, may have been killed before it said how it ended.
        """
        run_dir = self.run_of(record)
        if record.status not in ("running", "interrupted") or run_dir is None:
            return record
        if (final := self.final_record_of(record)) is not None and final.id == record.id:
            # It would be in the table if its scheduler had said so: its sweep has ended it.
            ended: Status = "interrupted" if final.status == "stopped_early" else final.status
            return replace(final, status=ended, run_dir=record.run_dir)
        with contextlib.suppress(NotARunDirectory):
            status = read_status(RunDirectory(run_dir))
            if record.status == "running" and status and status.state_now == "interrupted":
                return replace(record, status="interrupted")
        return record

    def write_process(self, process: Process) -> None:
        """Says who runs the sweep from now on.

        Raises:
            OSError: the folder cannot be written to.
        """
        write_json(self.path / _PROCESS_FILE, asdict(process))

    def read_process(self) -> Process | None:
        """Returns who runs the sweep or was the last to; None if nobody has said so.

        Raises:
            NotASweepDirectory: something else wrote the file.
        """
        try:
            return msgspec.json.decode((self.path / _PROCESS_FILE).read_bytes(), type=Process)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise NotASweepDirectory(
                self.path, f"its {_PROCESS_FILE} is broken: {error!r}"
            ) from error

    def final_record_of(self, record: TrialRecord) -> TrialRecord | None:
        """Returns what a trial itself wrote when it was over, None if it did not get so far."""
        run_dir = self.run_of(record)
        if run_dir is None:
            return None
        try:
            text = (run_dir / FINAL_RECORD_FILE).read_text(encoding="utf-8")
            return TrialRecord.from_dict(json.loads(text))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def is_running(self) -> bool:
        """Whether a process runs it now.

        Raises:
            NotASweepDirectory: as `read_process`.
        """
        process = self.read_process()  # else another one that begins might find it locked
        return process is not None and not process.has_ended and is_held(self.lock)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from running this sweep; released however this one ends.

        Raises:
            SweepIsRunning: another process runs it.
        """
        taken = f"{self.path} is being run by another process; wait for it, or stop it first"
        with held(self.lock, lambda: SweepIsRunning(taken)):
            yield
