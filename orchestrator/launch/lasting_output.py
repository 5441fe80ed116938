"""A stdout and stderr that outlast their reader: ``muxrl launch | head``, a closed terminal."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Lets printing never fail while the ``with`` block lasts.

    What can no longer be written goes nowhere, from the first failure on. It may be logged or
    printed by anyone, so file descriptors are redirected and the streams of `sys` replaced. Streams
    that are not the process's own, such as a notebook's, are left alone.
    """
    for number in range(3):  # closed from the beginning: the next file would take its place
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = [_own_or_nowhere(stream) for stream in (sys.stdout, sys.stderr)]
    sys.stdout, sys.stderr = (_lasting(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


class _LastingFile(io.FileIO):
    """A file descriptor that is sent nowhere once it cannot be written to."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            send_nowhere(self.fileno())
            return len(data)


def _own_or_nowhere(stream: TextIO | None) -> TextIO:
    """A stream; one that leads nowhere where Python has found none or it was closed."""
    if stream is None or stream.closed:
        return io.TextIOWrapper(io.FileIO(os.devnull, "w"))
    return stream


def _lasting(stream: TextIO) -> TextIO:
    if stream not in (sys.__stdout__, sys.__stderr__) or not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        stream.flush()
    except OSError:
        send_nowhere(stream.fileno())
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )


def forget_lost_readers() -> bool:
    """Returns whether nobody reads stdout or stderr any more; what is left for it goes nowhere."""
    streams = select.poll()
    for number in (1, 2):
        streams.register(number, 0)
    lost = [
        number for number, event in streams.poll(0) if event & (select.POLLERR | select.POLLHUP)
    ]
    for number in lost:
        send_nowhere(number)
    return bool(lost)


def send_nowhere(number: int) -> None:
    """Redirects a file descriptor: what is left in a buffer of Python's does not fail at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
