"""Writes and reads ``status.json``: how a run stands, or how it ended.

::

    state       starting, running, evaluating; done, failed, interrupted
    cause       why it failed or was interrupted, in a sentence; "" otherwise
    stopped_by  the stop condition that ended training, such as "win ≥ 0.9"; "": none did
    waiting_for what the first env step waits for, such as a simulation; "" after that step
    started_at  ISO 8601, UTC
    ended_at    ISO 8601, UTC; null while the run goes on
    host, pid   the process that watches over the run
    pid_started start of that process on its system's clock; tells it from a later one with its pid
    ends_on_sigterm  whether SIGTERM to that process ends the run cleanly
    env_steps   of training; while the run goes on, up to some ten seconds old
    num_resumed how often the run was resumed; `started_at` is of its first start
    num_restarts how often each process was started again after it was lost
    muxrl       version of muxrl
    folders     folders in which that process looked for the user's own modules
    warnings    what logs warned of, by server; "" stands for the run itself
    checkpoint_problem why the last checkpoint was not written; "" if it was

A run that was killed leaves its last state, and the id of a process that no longer lives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, get_args

import msgspec

from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.storage.versions import installed_version
from muxrl.orchestrator.user_modules import user_folders
from muxrl.protocol.messages import ServerWarning

logger = logging.getLogger(__name__)

NOT_ENDED = "had not ended when these results were read: it still runs or was killed"
"""The sentence in reports on a run whose status is not one of an end."""
_FILE = "status.json"
_COUNTS_S = 10.0
"""Time between two writes of env steps and counts of warnings; a new warning is written at
once."""
EndState = Literal["done", "failed", "interrupted"]
State = Literal["starting", "running", "evaluating"] | EndState


@dataclass(frozen=True)
class RunStatus:
    """The content of ``status.json``, see above."""

    state: State
    cause: str
    started_at: str
    ended_at: str | None
    host: str
    pid: int
    env_steps: int
    muxrl: str | None
    num_resumed: int = 0
    num_restarts: Mapping[str, int] = field(default_factory=dict)
    pid_started: str | None = None
    ends_on_sigterm: bool = False
    folders: Sequence[str] = ()
    warnings: Mapping[str, Sequence[ServerWarning]] = field(default_factory=dict)
    checkpoint_problem: str = ""
    stopped_by: str = ""
    waiting_for: str = ""

    @property
    def process(self) -> Process:
        """The process that watches over the run."""
        return Process(self.host, self.pid, self.pid_started, self.ends_on_sigterm)

    @property
    def has_ended(self) -> bool:
        """Whether the run wrote that it is over; a run that was killed did not."""
        return self.state in get_args(EndState)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, even if it was killed."""
        return self.state_now in get_args(EndState)

    @property
    def state_now(self) -> State:
        """The state; "interrupted" if the run's process, on this machine, no longer lives."""
        return "interrupted" if not self.has_ended and self.process.has_ended else self.state


class StatusFile:
    """Writes the status of a run that this process watches over, "starting" at first.

    Args:
        folder: the run's directory.
        before: the former status, if the run is resumed.
        ends_on_sigterm: whether SIGTERM to this process ends the run cleanly.
    """

    def __init__(
        self,
        folder: RunDirectory,
        before: RunStatus | None = None,
        *,
        ends_on_sigterm: bool = False,
    ) -> None:
        process = Process.here(ends_on_sigterm=ends_on_sigterm)
        self._path = folder.path / _FILE
        self._status = RunStatus(
            "starting",
            "",
            before.started_at if before else _now(),
            None,
            process.host,
            process.pid,
            before.env_steps if before else 0,
            installed_version(),
            before.num_resumed + 1 if before else 0,
            dict(before.num_restarts) if before else {},
            process.started,
            process.ends_on_sigterm,
            user_folders(),
            before.warnings if before else {},
        )
        self._write()

    def note_restart(self, name: str) -> None:
        """Notes that a process was lost and is started again."""
        before = self._status.num_restarts
        after = {**before, name: before.get(name, 0) + 1}
        self._status = replace(self._status, num_restarts=after)
        self._write()

    def note_stop(self, stopped_by: str) -> None:
        """Notes which stop condition ended training; it is written with the next state."""
        self._status = replace(self._status, stopped_by=stopped_by)

    def note_waiting(self, waiting_for: str) -> None:
        """Notes what the first env step waits for, and writes it; "": the step has been played."""
        if waiting_for != self._status.waiting_for:
            self._status = replace(self._status, waiting_for=waiting_for)
            self._write()

    def note_env_steps(self, env_steps: int) -> None:
        """Notes how far training is; it is written by `warn`."""
        self._status = replace(self._status, env_steps=env_steps)

    def warn(
        self, warnings: Mapping[str, Sequence[ServerWarning]], checkpoint_problem: str
    ) -> None:
        """Notes warnings; writes new ones at once, and what else changed every few seconds.

        Args:
            warnings: by server, or "" for the run itself; those of other servers stay as they are.
            checkpoint_problem: why the last checkpoint was not written; "" if it was.
        """
        before = self._status
        self._status = replace(
            before,
            warnings={**before.warnings, **warnings},
            checkpoint_problem=checkpoint_problem,
        )
        is_new = before.checkpoint_problem != checkpoint_problem or any(
            len(found) != len(before.warnings.get(who, ())) for who, found in warnings.items()
        )
        is_late = time.monotonic() - self._written_at > _COUNTS_S
        if is_new or (is_late and self._status != self._written):
            self._write()

    def enter(self, state: State, env_steps: int, cause: str = "") -> None:
        """Notes that the run is in a new state, and writes it.

        If it cannot be written, on a full disk for instance, this is logged and the run goes on.
        """
        self._status = replace(self._status, state=state, env_steps=env_steps, cause=cause)
        if self._status.has_ended:
            self._status = replace(self._status, ended_at=_now(), waiting_for="")
        self._write()

    def _write(self) -> None:
        self._written, self._written_at = self._status, time.monotonic()
        try:
            write_json(self._path, msgspec.to_builtins(self._status))
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error)


def read_status(folder: RunDirectory) -> RunStatus | None:
    """Reads a run's ``status.json``; None if there is none.

    Raises:
        NotARunDirectory: the file is broken.
    """
    try:
        return msgspec.json.decode((folder.path / _FILE).read_bytes(), type=RunStatus)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise NotARunDirectory(folder.path, f"its {_FILE} is broken: {error!r}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
