"""A run's trackers while it goes on: each gets every row, and none can end or hold the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muxrl.orchestrator.config.trackers import is_local
from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.trackers.beside import TrackerBeside, end_all
from muxrl.orchestrator.trackers.session import Session, describe, end_state

logger = logging.getLogger(__name__)

_END_S = 60.0
"""For all trackers of a run to send what is left; a first ``mlflow.db`` alone takes 20 s."""


class Tracking:
    """The trackers of one run. Once it is made, nothing here raises.

    Those that only append to a file are fed at once, since a process for each run would cost more
    than they do; all others in processes of their own.

    Args:
        folder: the run's directory, with its plan and config.
        names: of the trackers, as in the config.
        resumed_at: env steps at which the run goes on; None: it is new.

    Raises:
        NotARunDirectory: the plan or the config is missing.
    """

    def __init__(
        self, folder: RunDirectory, names: Sequence[str], resumed_at: int | None = None
    ) -> None:
        self._folder = folder
        self._sessions: dict[str, Session] = {}
        self._beside: list[TrackerBeside] = []
        if not names:
            return
        run = describe(folder, resumed_at)
        for name in names:
            if not is_local(name):
                self._beside.append(TrackerBeside(name, run))
                continue
            with self._guarded(name):
                self._sessions[name] = Session(name, run)

    def take(self, name: str, record: Mapping[str, Any]) -> None:
        """Hands on a row of ``metrics/NAME.jsonl``."""
        for tracker, session in list(self._sessions.items()):
            with self._guarded(tracker):
                session.take(name, record)
        for beside in self._beside:
            beside.take(name, record)

    def close(self) -> None:
        """Hands over the report, and waits until all is written or given up."""
        try:
            state = end_state(self._folder)
        except (NotARunDirectory, OSError) as error:
            logger.warning("the trackers are told that the run was interrupted: %s", error)
            state = "interrupted"
        for tracker, session in list(self._sessions.items()):
            with self._guarded(tracker):
                session.end(state)
        end_all(self._beside, state, _END_S)
        self._sessions, self._beside = {}, []

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Leaves a tracker alone once it raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a tracker may raise anything
            logger.warning(
                "nothing more is written for the tracker %r in %s: %s; the metrics go on",
                name,
                self._folder.path,
                error,
            )
            if (session := self._sessions.pop(name, None)) is not None:
                session.abandon()
