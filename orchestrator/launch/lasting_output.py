"""Keeps stdout and stderr usable when their reader is gone: ``muxrl launch | head``, say."""

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
    """Keeps printing from failing while the ``with`` block lasts.

    From the first failure on, output is discarded. Any code may log or print, so file descriptors
    are redirected and the streams of `sys` replaced. Streams that are not the process's own, such
    as a notebook's, are left alone.
    """
    for number in range(3):  # if it is closed, the next file that opens would take its place
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
    """A file whose output is discarded once it cannot be written to."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            send_nowhere(self.fileno())
            return len(data)


def lasting_copy(number: int) -> TextIO:
    """Returns a file that writes where a file descriptor does now, and never fails."""
    try:
        descriptor = os.dup(number)
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
    file = io.BufferedWriter(_LastingFile(descriptor, "w"))
    return io.TextIOWrapper(file, encoding="utf-8", errors="replace")


def _own_or_nowhere(stream: TextIO | None) -> TextIO:
    """Returns the stream; a new one that discards its output if it is missing or closed."""
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
    """Discards further output of stdout and stderr if they are not read any more.

    Returns:
        Whether one of them has lost its reader.
    """
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
    """Redirects a file descriptor to nowhere, so that flushing Python's buffers cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
