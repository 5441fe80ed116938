"""A simulation that is a program of the user's: started with a run, watched, and ended with it."""

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
    """A process that starts a command and waits for it. What it prints goes to the log file.

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
            RunFailed: it cannot be started, or it ended before it was told to, but for code 0:
                a program may play one episode and end.
        """
        if self._is_stopping.is_set():
            return
        self._program = start_command("simulation.command", self._command)
        code = self._program.wait()
        logger.info("it has ended with code %d", code)
        if not self._is_stopping.is_set() and code:
            raise RunFailed(
                f"simulation.command {shlex.join(self._command)} ended {how_ended(code)} before "
                "the run was over"
            )

    def report(self) -> SimulationReport:
        """Says that the process lives; the gateway counts what is played."""
        return SimulationReport()

    @in_own_thread
    def stop(self, patience_s: float) -> None:
        """Waits until the command ends by itself, and ends it after that time."""
        self._is_stopping.set()
        if self._program is not None:
            self._program.end(patience_s, _TERM_S)
