"""A simulation that is a program of the user, which starts and ends with the run."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Sequence

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise.child import Program, how_ended, start_command
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.orchestrator.supervise.working import in_own_thread

logger = logging.getLogger(__name__)

_TERM_S = 5.0


class CommandProcess:
    """A process that starts a command and waits for it. The command's output goes to the log.

    Args:
        command: program and arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._program: Program | None = None
        self._is_stopping = threading.Event()

    @in_own_thread
    def run(self) -> None:
        """Runs the command until it ends.

        Raises:
            RunFailed: the command cannot be started, or has ended by itself with another exit code
                than 0; a program may play one episode and end with 0.
        """
        if self._is_stopping.is_set():
            return
        self._program = start_command("simulation.command", self._command)
        code = self._program.wait()
        logger.info("the program has ended with exit code %d", code)
        if not self._is_stopping.is_set() and code:
            raise RunFailed(
                f"simulation.command {shlex.join(self._command)} ended {how_ended(code)} before "
                "the run was over"
            )

    def report(self) -> SimulationReport:
        """Returns an empty report, a sign of life: the gateway counts what is played."""
        return SimulationReport()

    @in_own_thread
    def stop(self, patience_s: float) -> None:
        """Lets the command end by itself within `patience_s`, and ends it otherwise."""
        self._is_stopping.set()
        if self._program is not None:
            self._program.end(patience_s, _TERM_S)
