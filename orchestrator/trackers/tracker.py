"""The interface of trackers, which take the numbers of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """A run's description, which a tracker gets before any number."""

    folder: Path
    """The run's directory."""
    project: str
    """Name of the experiment, or of the sweep, under which runs are kept together."""
    assignment: str
    """The canonical string of which algorithm serves which agents."""
    config: Mapping[str, Any]
    """The resolved experiment, without tokens."""
    group: str = ""
    """Name of the directory of the sweep that the run belongs to; "": it is no trial."""
    resumed_at: int | None = None
    """Env steps at which the run continues; new rows replace earlier ones after these env steps."""
    known_as: str = ""
    """What `Tracker.start` returned before the run was resumed; "" the first time."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.name


class Tracker(Protocol):
    """One run in one tracker. A tracker may raise anything, and take any time; see `tracking`.

    A user's own class is named in the config as ``package.module:name``, and made without
    arguments. `start` is called first and `end` last, each once.
    """

    def start(self, run: TrackedRun) -> str:
        """Begins the tracker's run, or continues `TrackedRun.known_as`.

        Returns:
            The tracker's id of the run.
        """

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Takes one row of metrics.

        Args:
            numbers: finite, by names such as ``SERVER/loss``; see `session.numbers`.
            env_steps: of the run at this row; rows of several servers overlap.
        """

    def artifacts(self, files: Sequence[Path]) -> None:
        """Takes the files of the run's report."""

    def end(self, state: str) -> None:
        """Ends the tracker's run.

        Args:
            state: "done", "failed" or "interrupted".
        """
