"""``muxrl logs``: show or follow the logs of a run's processes.

Shows the log of a process of a run, or the last lines of all of them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command

_LINES_OF_EACH = 10


@command(only_prints=True)
def logs(
    run: Path, processes: Sequence[str] = (), *, follow: bool = False, lines: int | None = None
) -> None:
    """Prints the lines.

    Args:
        run (RUN): a run's directory.
        processes (PROCESS): a server's id, simulation-0, evaluation, ...; default: all.
        follow (-f): keep printing new lines until the run ends, or Ctrl-C.
        lines (-n N): only the last N lines; default: all of one process, 10 of several.
    """
    from muxrl.orchestrator.manage.logs import Logs
    from muxrl.orchestrator.records.run_directory import RunDirectory

    found = Logs(RunDirectory.open(run), processes)
    is_one = len(processes) == 1
    if lines is not None or not is_one:
        found.begin(_LINES_OF_EACH if lines is None else max(1, lines))
    width = max(map(len, found.processes), default=0)
    with contextlib.suppress(KeyboardInterrupt):
        for process, line in found.follow() if follow else found.read():
            sys.stdout.write(f"{line}\n" if is_one else f"{process:{width}} | {line}\n")
            if follow:
                sys.stdout.flush()
