"""Exceptions of users' own code, told in one line: what it was, and where."""

from __future__ import annotations

import errno
import os
import sysconfig
import traceback

_OWN = tuple(
    os.path.join(os.path.abspath(__file__).rpartition("protocol")[0], room, "")
    for room in ("client", "orchestrator", "protocol")
)
"""Folders of muxrl's code that calls users'."""
_INSTALLED = ("<", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def one_line(error: BaseException) -> str:
    """Returns an exception in one line, with the file and line of the user's code it came from."""
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
    """Returns where an exception came from in code that is not muxrl's: the innermost line that is
    not of an installed package, if there is one. None: it is all muxrl's."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    written = [frame for frame in others if not frame.filename.startswith(_INSTALLED)]
    return next(reversed(written or others), None)
