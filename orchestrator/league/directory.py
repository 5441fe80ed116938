"""The folder that holds all there is to know of a league.

::

    <name>-YYYYmmdd-HHMMSS/
    ├── league.yaml       the league as it was resolved
    ├── rounds/01/        a sweep's directory: its sweep.yaml says who trained with what
    │   └── games.json    the games after it; written when all are played
    ├── report.html, summary.md, plots/, league.json
    └── lock
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import NotALeagueDirectory, SweepIsRunning
from muxrl.orchestrator.records.run_directory import (
    LEAGUE_FILE,
    TRIALS_FILE,
    make_next_folder,
    no_such_folder,
)
from muxrl.orchestrator.storage.json_files import write_json, write_text
from muxrl.orchestrator.sweeps.directory import SweepDirectory
from muxrl.servers.checkpoints.folder_lock import held


@dataclass(frozen=True)
class LeagueDirectory:
    """Where everything of one league lies. Make one with `create`, read one back with `open`."""

    path: Path

    @classmethod
    def create(cls, path: Path | None, root: Path, name: str, config: str) -> LeagueDirectory:
        """Makes exactly `path`, or if that is None ``<name>-YYYYmmdd-HHMMSS`` under `root`.

        Raises:
            FileExistsError: it is there already.
            OSError: it cannot be made.
        """
        if path is None:
            path = make_next_folder(root, f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
        else:
            path.mkdir(parents=True)
        (path / "rounds").mkdir()
        write_text(path / LEAGUE_FILE, config)
        return cls(path.resolve())

    @classmethod
    def open(cls, path: Path) -> LeagueDirectory:
        """The league that was written to `path`.

        Raises:
            NotALeagueDirectory: there is none.
        """
        if not (path / LEAGUE_FILE).is_file():
            lacks = f"it has no {LEAGUE_FILE}" if path.is_dir() else no_such_folder(path)
            raise NotALeagueDirectory(path, lacks)
        return cls(path.resolve())

    @property
    def config_file(self) -> Path:
        """The league as it was resolved."""
        return self.path / LEAGUE_FILE

    def round(self, number: int) -> Path:
        """Returns the folder of a round, counted from 1."""
        return self.path / "rounds" / f"{number:02d}"

    def sweep(self, number: int) -> SweepDirectory | None:
        """Returns a round's sweep; None if it has no trials yet."""
        folder = self.round(number)
        return SweepDirectory.open(folder) if (folder / TRIALS_FILE).is_file() else None

    def is_trained(self, number: int) -> bool:
        """Whether all of a round's members have trained."""
        sweep = self.sweep(number)
        return sweep is not None and all(trial.status == "done" for trial in sweep.trials())

    def games(self, number: int) -> dict[str, Any] | None:
        """Returns the games after a round; None if they are not played."""
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((self.round(number) / "games.json").read_text("utf-8")))
        return None

    def write_games(self, number: int, games: dict[str, Any]) -> None:
        """Writes them, whole."""
        write_json(self.round(number) / "games.json", games)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from running this league; released however this one ends.

        Raises:
            SweepIsRunning: another process runs it.
        """
        taken = f"{self.path} is being run by another process; wait for it, or stop it first"
        with held(self.path / "lock", lambda: SweepIsRunning(taken)):
            yield
