"""``muxrl stop``: end a run, sweep or league from another terminal, as Ctrl-C does.

Ends a run, sweep or league of this machine as Ctrl-C does, a run with a last checkpoint and its
report, waits for its end and says how it ended.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.errors import ExitCode

_TIMEOUT_S = 300.0
"""An update in progress, the last checkpoint and the report take seconds, on large runs minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a run, sweep or league")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="S",
        help="seconds to wait for its end; default: %(default)g",
    )


def run(args: argparse.Namespace) -> int:
    """Ends it, says how it ended, and returns the exit code."""
    from muxrl.orchestrator.manage.stopping import stop

    is_well, sentence = stop(args.run, args.timeout, _say)
    sys.stdout.write(f"{sentence}\n")
    return ExitCode.DONE if is_well else ExitCode.FAILED


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
