"""The exit codes of ``muxrl``, so that a script need not read its output."""

from __future__ import annotations

import sys

DONE = 0
FAILED = 1
CONFIG = 2
"""Nothing was started: the config or the command line is wrong."""
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""


def say_why(error: Exception, refused: type[Exception] | tuple[type[Exception], ...]) -> int:
    """Prints what went wrong and returns the exit code.

    Args:
        error: whose text is for people.
        refused: those that mean that nothing was started.
    """
    sys.stderr.write(f"muxrl: {error}\n")
    return CONFIG if isinstance(error, refused) else FAILED
