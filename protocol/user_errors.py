"""Describes exceptions from users' own code in one line: what was raised, and where."""

from __future__ import annotations

import errno
import os
import sysconfig
import traceback

_OWN = tuple(
    os.path.join(os.path.abspath(__file__).rpartition("protocol")[0], room, "")
    for room in ("client", "orchestrator", "protocol")
)
"""Folders of muxrl's code that calls users' code."""
_INSTALLED = ("<", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def one_line(error: BaseException) -> str:
    """Returns an exception in one line, with file and line of the user's code that raised it."""
    frame = user_frame(error)
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if frame is None:
        return text
    line = f": {frame.line}" if text == type(error).__name__ and frame.line else ""
    one_line = f"{text} ({os.path.basename(frame.filename)}, line {frame.lineno}{line})"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        one_line += (
            "; another program has the port, or another copy of the environment: each copy gets "
            "its own where simulation.kwargs count them, as in '{5000 + index}'"
        )
    return one_line


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the line outside muxrl's code from which an exception came, None if there is none.

    It is the innermost line outside installed packages, if there is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    written = [frame for frame in others if not frame.filename.startswith(_INSTALLED)]
    return next(reversed(written or others), None)
