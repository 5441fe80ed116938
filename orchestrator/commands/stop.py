"""``muxrl stop``: end a run, sweep or league from another terminal, as Ctrl-C does.

Ends a run, sweep or league of this machine as Ctrl-C does: a run still writes a last checkpoint and
its report. Waits for the end, and prints how it ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.errors import ExitCode

_TIMEOUT_S = 300.0
"""Seconds. An open update, the last checkpoint and the report may take minutes in large runs."""


@command()
def stop(run: Path, *, timeout: float = _TIMEOUT_S) -> int:
    """Ends it, says how it ended, and returns the exit code.

    Args:
        run (RUN): directory of a run, sweep or league.
        timeout (S): seconds to wait for the end.
    """
    from muxrl.orchestrator.manage.stopping import stop as end

    is_well, sentence = end(run, timeout, _say)
    sys.stdout.write(f"{sentence}\n")
    return ExitCode.DONE if is_well else ExitCode.FAILED


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
