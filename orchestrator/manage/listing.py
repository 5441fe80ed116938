"""Lists the runs and sweeps in a folder, and their states, as plain data.

Each has an entry with at least ``name`` (its path in the folder), ``kind`` and ``began_at``
(ISO 8601, UTC):

run
    ``state, cause, host, pid, assignment, servers: [{id, algorithm, agents, evaluated}], env_steps,
    resumable_at, ended_at``; `evaluated` is the mean return of the newest evaluation,
    `resumable_at` the env steps of the newest checkpoint of a run that was cut short, else None
sweep
    ``state, counts: {status: number of trials}, templates, env_steps``
broken
    ``cause``
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import OrchestratorError
from muxrl.orchestrator.records.metrics import last_row, last_rows
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.run_directory import LEAGUE_FILE, TRIALS_FILE, RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.records.series import mean_of_episodes
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.sweeps.directory import Status, SweepDirectory

MOST_ENTRIES = 1_000
_DEPTH = 2
"""How deep to look: ``runs/NAME`` and ``sweeps/NAME`` are found, too."""
_FILES = (
    "status.json",
    "plan.json",
    "metrics/joint.jsonl",
    "metrics/evaluation.jsonl",
    "checkpoints",
)


_STATES_OF_SWEEPS: tuple[Status, ...] = ("running", "interrupted", "waiting", "failed")
"""A sweep's state is the first of these that any trial has; if none has any, it is done."""


class Listing:
    """Lists a folder repeatedly, and only reads runs and sweeps that have changed.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[Path, tuple[object, dict[str, Any]]] = {}

    def read(self) -> dict[str, Any]:
        """Returns the folder's present content: the newest `MOST_ENTRIES`, the newest first.

        Its keys are ``kind, name, is_whole, num_left_out, entries``; older entries are left out.

        Raises:
            OSError: the folder cannot be read.
        """
        found = sorted(_directories(self._path, _DEPTH), key=_began_at, reverse=True)
        known, self._entries = self._entries, {}
        for path in found[:MOST_ENTRIES]:
            version = [_version(path / name) for name in _FILES]
            before = known.get(path)
            if before is None or before[0] != version or before[1]["kind"] == "sweep":
                entry = self._entry(path)  # a killed trial changes no file of its sweep
            else:
                entry = before[1]
            self._entries[path] = version, entry
        return {
            "kind": "folder",
            "name": self._path.resolve().name,
            "is_whole": True,
            "num_left_out": max(0, len(found) - MOST_ENTRIES),
            "entries": sorted(
                (_with_state(entry) for _, entry in self._entries.values()),
                key=lambda entry: str(entry["began_at"]),
                reverse=True,
            ),
        }

    def _entry(self, path: Path) -> dict[str, Any]:
        about = {"name": path.relative_to(self._path).as_posix(), "began_at": _began_at(path)}
        try:
            is_sweep = (path / TRIALS_FILE).is_file()
            return about | (_about_sweep(path) if is_sweep else _about_run(path))
        except (OrchestratorError, OSError, ValueError, KeyError, TypeError) as error:
            return about | {"kind": "broken", "cause": f"{error}"}


def _directories(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the runs and sweeps below a folder, also rounds of leagues, but no runs of sweeps."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.is_symlink() or not path.is_dir():
            continue
        if (path / "metrics").is_dir() or (path / TRIALS_FILE).is_file():
            yield path
        elif (path / LEAGUE_FILE).is_file() and (path / "rounds").is_dir():
            yield from _directories(path / "rounds", 1)
        elif depth > 1:
            with contextlib.suppress(PermissionError):
                yield from _directories(path, depth - 1)


def _about_run(path: Path) -> dict[str, Any]:
    folder = RunDirectory.open(path)
    plan = folder.read_plan()
    latest = last_row(folder.metrics / "joint.jsonl", JointRow)
    evaluations = last_rows(folder.metrics / "evaluation.jsonl", EvaluationRow)
    returns = next((row.returns for row in evaluations if row.replaced is None), {})
    status = read_status(folder)
    return {
        "kind": "run",
        "status": status,
        "began_at": status.started_at if status else _began_at(path),
        "assignment": plan.assignment,
        "servers": [
            {
                "id": server_id,
                "algorithm": server.algorithm,
                "agents": server.agents,
                "evaluated": mean_of_episodes(returns, server.agents),
            }
            for server_id, server in plan.acting.items()
        ],
        "env_steps": max(latest.env_steps if latest else 0, status.env_steps if status else 0),
        "newest_checkpoint": next(iter(CheckpointFolder(folder.checkpoints).env_steps), None),
        "ended_at": status.ended_at if status else None,
    }


def _about_sweep(path: Path) -> dict[str, Any]:
    sweep = SweepDirectory.open(path)
    trials = sweep.trials()
    counts = Counter(trial.status for trial in trials)
    state = next((s for s in _STATES_OF_SWEEPS if counts[s]), "done")
    if state == "waiting" and sweep.is_running:  # Ray starts, or no trial runs just now
        state = "running"
    templates = sorted({template for trial in trials for template in trial.roles.values()})
    return {
        "kind": "sweep",
        "state": state,
        "counts": counts,
        "templates": templates,
        "env_steps": sum(trial.env_steps for trial in trials),
    }


def _with_state(entry: dict[str, Any]) -> dict[str, Any]:
    """Adds the state of a run: if its process is killed, the state changes, but no file does."""
    if entry["kind"] != "run":
        return entry
    entry = dict(entry)
    status, newest = entry.pop("status"), entry.pop("newest_checkpoint")
    state = status.state_now if status else "unknown"
    return {
        **entry,
        "state": state,
        "cause": status.cause if status else "",
        "host": status.host if status else None,
        "pid": status.pid if status else None,
        "resumable_at": newest if state in ("failed", "interrupted") else None,
    }


def _version(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _began_at(path: Path) -> str:
    """Returns when a directory was made, as ISO 8601: the time of its first file."""
    for name in ("versions.json", "sweep.yaml", "plan.json"):
        with contextlib.suppress(OSError):
            made_s = (path / name).stat().st_mtime
            return datetime.fromtimestamp(made_s, UTC).isoformat(timespec="seconds")
    return ""
