"""What a tracker is: anything that takes the numbers of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before any number."""

    folder: Path
    """The run's directory."""
    project: str
    """The experiment's name, or the sweep's: what runs are kept together under."""
    assignment: str
    """Which algorithm has which agents, canonical."""
    config: Mapping[str, Any]
    """The resolved experiment, without tokens."""
    group: str = ""
    """The directory of the sweep that the run is a trial of; "" if of none."""
    resumed_at: int | None = None
    """Env steps at which the run continues: what comes after them replaces what came before."""
    known_as: str = ""
    """What `Tracker.start` returned before the run was resumed; "" the first time."""

    @property
    def name(self) -> str:
        """The run's own name."""
        return self.folder.name


class Tracker(Protocol):
    """One run in one tracker. It may raise anything, and take any time: see `tracking`.

    A class of one's own is named in the config as ``package.module:name`` and made without
    arguments. `start` comes first and `end` last, each once.
    """

    def start(self, run: TrackedRun) -> str:
        """Begins the tracker's run, or continues `TrackedRun.known_as`.

        Returns:
            What the tracker knows the run by.
        """

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Takes one row of metrics.

        Args:
            numbers: finite, by names such as ``SERVER/loss``; see `session.numbers`.
            env_steps: when, in env steps of the run; rows of several servers overlap.
        """

    def artifacts(self, files: Sequence[Path]) -> None:
        """Takes the files of the run's report."""

    def end(self, state: str) -> None:
        """Ends the tracker's run.

        Args:
            state: "done", "failed" or "interrupted".
        """
