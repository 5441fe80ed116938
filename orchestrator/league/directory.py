"""The folder of a league with all that is known of it.

::

    <name>-YYYYmmdd-HHMMSS/
    ├── league.yaml       the league as it was resolved
    ├── rounds/01/        a sweep's directory: its sweep.yaml has the members' settings
    │   └── games.json    the games after the round; written when all are played
    ├── report.html, summary.md, plots/, league.json
    └── lock             held by the process that runs the league, and says which that is
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import NotALeagueDirectory
from muxrl.orchestrator.records.run_directory import LEAGUE_FILE, TRIALS_FILE
from muxrl.orchestrator.storage.folders import Folder
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.sweeps.directory import SweepDirectory


@dataclass(frozen=True)
class LeagueDirectory(Folder):
    """The folder of one league. `make` makes a new one, `open` reads one back."""

    _INNER = ("rounds",)
    _FILES = (LEAGUE_FILE,)
    _NOT_ONE = NotALeagueDirectory

    @property
    def config_file(self) -> Path:
        """The file with the league as it was resolved."""
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
        """Writes the games after a round, replacing the file as a whole."""
        write_json(self.round(number) / "games.json", games)
