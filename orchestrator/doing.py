"""Shows in one line what muxrl is doing while a user waits: "evaluation: 40 of 100 episodes".

Code that takes long calls `doing`. Nothing is shown unless the process has called `shown_on`: so a
command shows what its run does, and a trial of a sweep stays silent.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

PLAIN_INTERVAL_S = 10.0
"""Seconds between lines where there is no terminal: CI logs get few lines, and signs of life."""

_listeners: list[Callable[[str, str], None]] = []
_what = _part = ""


def doing(what: str, part: str = "") -> None:
    """Shows what is going on.

    Args:
        what: such as "head to head"; a new text is shown at once.
        part: how far it has come, such as "match 2 of 6".
    """
    global _what, _part
    _what, _part = what, part
    progress("")


def progress(within: str) -> None:
    """Shows how far the newest part of `doing` has come, such as "40 of 100 episodes"."""
    if _listeners:
        _listeners[-1](_what, ", ".join(filter(None, (_part, within))))


@contextlib.contextmanager
def _listening(listener: Callable[[str, str], None]) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


def silenced() -> contextlib.AbstractContextManager[None]:
    """Shows nothing while the ``with`` block lasts, as another display has the terminal."""
    return _listening(lambda what, how_far: None)


@contextlib.contextmanager
def shown_on(stream: TextIO) -> Iterator[None]:
    """Makes `doing` write to a stream while the ``with`` block lasts.

    A terminal has one line, which the next text replaces, and which is erased before anything else
    is printed. Any other stream gets a line for each new `what`, and at most one for its progress
    every `PLAIN_INTERVAL_S`.
    """
    if not is_terminal(stream):
        with _listening(_Lines(stream)):
            yield
        return
    line = _TerminalLine(stream)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Erasing(each, line)) for each in before)
    try:
        with _listening(line):
            yield
    finally:
        line.erase()
        sys.stdout, sys.stderr = before


def is_terminal(stream: TextIO) -> bool:
    """Whether a line on this stream can be replaced by another."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._what = ""
        self._shown_at = 0.0

    def __call__(self, what: str, how_far: str) -> None:
        if what == self._what and time.monotonic() - self._shown_at < PLAIN_INTERVAL_S:
            return
        self._what, self._shown_at = what, time.monotonic()
        self._stream.write(_text(what, how_far) + "\n")
        self._stream.flush()


class _TerminalLine:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_there = False

    def __call__(self, what: str, how_far: str) -> None:
        width = 80
        with contextlib.suppress(OSError):  # the stream was closed
            width = os.get_terminal_size(self._stream.fileno()).columns or width
        self._write(_text(what, how_far)[: width - 1])
        self._is_there = True

    def erase(self) -> None:
        if self._is_there:
            self._write("")
            self._is_there = False

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}")
        self._stream.flush()

    def erase_before(self, stream: TextIO) -> None:
        """Erases the line before something is written to `stream`, if it is the same terminal."""
        if self._is_there and os.path.sameopenfile(self._stream.fileno(), stream.fileno()):
            self.erase()


class _Erasing:
    """A stream that erases the progress line before it writes."""

    def __init__(self, stream: TextIO, line: _TerminalLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        self._line.erase_before(self._stream)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _text(what: str, how_far: str) -> str:
    return f"{what}: {how_far}" if how_far else what
