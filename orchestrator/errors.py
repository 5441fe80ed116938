"""The errors of the orchestrator; each class has the exit code with which its command ends.

::

    OrchestratorError           1
    ├── Refused                 2  nothing was started: change what was asked for
    │   ├── ConfigError         2  the config or the command line is wrong
    │   ├── NotARunDirectory    2  no run wrote this folder, or a file of it is missing or broken
    │   ├── NotASweepDirectory  2  the same for a sweep
    │   ├── NotALeagueDirectory 2  the same for a league
    │   ├── OtherFormat         2  a newer muxrl wrote the run or sweep: update this one
    │   ├── CannotResume        2  the run cannot continue, or be repeated, in this way
    │   ├── CannotEvaluate      2  the run cannot be evaluated in this way
    │   ├── CannotCompare       2  the runs cannot be compared in this way
    │   ├── CannotExport        2  a policy cannot become a file
    │   ├── CannotStop          2  the run or sweep cannot be ended from here
    │   └── DifferentRuns       2  the runs are not seeds of one experiment
    ├── RunFailed               1  a process of the run died or gave up: read its log
    │   ├── ProcessEnded        1  a process that is not muxrl's own ended; it may be started again
    │   │   └── Ended           1  one of muxrl's processes ended: its log says why, if it could
    │   ├── Raised              1  an error in another process that cannot be sent: read its log
    │   ├── NoPlace             1  the Ray cluster has no room: wait, or reserve less
    │   ├── NotShared           1  a machine of it does not see the run's directory: share it
    │   └── CannotRecord        1  a metrics file cannot be written to: make room on the disk
    ├── NotEnded                1  a run or sweep that was told to end still continues
    ├── Silent                  1  a process of the run does not answer; it is killed
    │   └── Outdated            1  a process that works must be restarted, since another has moved
    ├── NotSaved                1  a checkpoint is incomplete; the run continues
    ├── NotExported             1  a policy's file does not act as its server does
    ├── CannotTrack             1  a tracker failed while it was given a finished run
    ├── RunIsRunning            1  another process watches over this run: wait, or stop it
    ├── SweepIsRunning          1  another process runs this sweep: wait, or stop it
    └── MalformedMetrics        1  a metrics file is broken: something else wrote to it

`muxrl.orchestrator.cli` turns these into a message and an exit code, and with them the expected
errors of other packages (`is_expected`). Everything else is a bug and ends in a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """How a command of ``muxrl`` ended, for scripts that do not read its output."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    """Nothing was started: the config, the command line, or a path in it is wrong."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells count."""


class OrchestratorError(Exception):
    """Base of all errors of the orchestrator; the text is for people.

    Errors can be pickled, since they are sent between processes.
    """

    exit_code: ClassVar[int] = ExitCode.FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception.__reduce__ would call the class with `args`, which are not its arguments.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[OrchestratorError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> Any:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class Refused(OrchestratorError):
    """Nothing was started: change what was asked for."""

    exit_code = ExitCode.REFUSED


class ConfigError(Refused):
    """A config cannot be run as it is: fix the file or the command line.

    Args:
        problems: one sentence for each problem that was found.
        source: the config's file; "" if the config is from elsewhere.
    """

    def __init__(self, problems: Sequence[str], source: str = "") -> None:
        self.problems = list(problems)
        self.source = source
        super().__init__("\n".join(f"{source}: {p}" if source else p for p in self.problems))


class NotARunDirectory(Refused):
    """The folder was not written by a run, or a file that must be there is missing or broken.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not the directory of a run: {reason}")
        self.path = path


class NotASweepDirectory(Refused):
    """The folder was not written by a sweep, or a file that must be there is missing or broken.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not the directory of a sweep: {reason}")
        self.path = path


class NotALeagueDirectory(Refused):
    """The folder was not written by a league.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not the directory of a league: {reason}")
        self.path = path


class OtherFormat(Refused):
    """A newer muxrl wrote the run or sweep, so this one neither reads it nor adds to it.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path


class CannotResume(Refused):
    """The run cannot continue in this way; the sentence says what stands in the way."""


class CannotEvaluate(Refused):
    """The run cannot be evaluated in this way; the sentence says what is missing."""


class CannotCompare(Refused):
    """The runs cannot be compared in this way; the sentence says what stands in the way."""


class CannotExport(Refused):
    """A policy cannot become a file; the sentence says why."""


class CannotStop(Refused):
    """A run or sweep cannot be ended from here; the sentence says what stands in the way."""


class DifferentRuns(Refused):
    """Runs that are not seeds of one experiment cannot be combined.

    Attributes:
        names: of the two runs that differ.
    """

    def __init__(self, first: str, other: str, what: str) -> None:
        super().__init__(
            f"runs {first!r} and {other!r} cannot be combined: {what}; expected runs that differ "
            "in nothing but the seed"
        )
        self.names = (first, other)


class RunFailed(OrchestratorError):
    """A process of the run died or gave up; the sentence names it and its log.

    Attributes:
        place: where the process raised, if it is known; the same place twice is no accident.
    """

    def __init__(self, detail: str, place: str = "") -> None:
        super().__init__(detail)
        self.place = place


class ProcessEnded(RunFailed):
    """A process that is not muxrl's own has ended, and may be started again."""


class Ended(ProcessEnded):
    """A worker's process has ended, and all calls to it have failed; the text says how it ended."""


class Raised(RunFailed):
    """A call in another process raised an exception that cannot be sent here itself."""


class NoPlace(RunFailed):
    """The Ray cluster has no room for the run; the sentence says what it needs and what is free."""


class NotShared(RunFailed):
    """A machine of the Ray cluster does not see the run's directory; nothing was started there."""


class CannotRecord(RunFailed):
    """A metrics file cannot be written to; the rows before are complete.

    Attributes:
        path: the file.
        env_steps: of training, up to which everything was recorded.
    """

    def __init__(self, path: Path, error: OSError, env_steps: int) -> None:
        super().__init__(
            f"cannot write to {path}: {error.strerror or error}; the metrics are complete up to "
            f"env step {env_steps:,}"
        )
        self.path = path
        self.env_steps = env_steps


class NotEnded(OrchestratorError):
    """A run or sweep was told to end, and still runs; the sentence names its process."""


class Silent(OrchestratorError):
    """A process of a run does not answer: it may be stopped, or wedged."""


class Outdated(Silent):
    """A process works, but must be restarted because another process has moved."""


class NotSaved(OrchestratorError):
    """A checkpoint is incomplete; the sentence says whose part is missing, and why."""


class NotExported(OrchestratorError):
    """A policy's file does not act as its server does, and was not kept."""


class CannotTrack(OrchestratorError):
    """A tracker has failed while it was given a finished run; the sentence says how."""


class RunIsRunning(OrchestratorError):
    """Another process watches over this run."""


class SweepIsRunning(OrchestratorError):
    """Another process runs this sweep."""


class MalformedMetrics(OrchestratorError):
    """A line other than the last of a metrics file is not a JSON object, or lacks a field.

    Attributes:
        path: the file.
        line: its number, from 1.
    """

    def __init__(self, path: Path, line: int, problem: str = "") -> None:
        super().__init__(
            f"{path}, line {line}, is not a JSON object as muxrl writes it"
            f"{problem and f' ({problem})'}, and only a last line may be cut off; did something "
            "other than muxrl write to this file?"
        )
        self.path = path
        self.line = line


def is_expected(error: BaseException) -> bool:
    """Whether an error's text says enough, so that a command prints no traceback."""
    if isinstance(error, OrchestratorError | OSError):
        return True
    # Imported here, since it takes time, and most commands end without it.
    from muxrl.client.env_loop import SimulationFailed
    from muxrl.client.errors import ClientError
    from muxrl.servers.training.policies import ServerProblem

    return isinstance(error, ClientError | SimulationFailed | ServerProblem)


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code of a command that ended with an expected error."""
    if isinstance(error, FileExistsError):  # the folder for results exists already
        return ExitCode.REFUSED
    return error.exit_code if isinstance(error, OrchestratorError) else ExitCode.FAILED
