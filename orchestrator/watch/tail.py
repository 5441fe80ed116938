"""A file of JSON lines that grows while it is read, piece by piece, and is cut back at times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from muxrl.orchestrator.errors import MalformedMetrics
from muxrl.orchestrator.records.metrics import whole_lines

_CHUNK_BYTES = 4 * 2**20
"""Read at a time, up to a line's end: half a second of parsing, so that a page comes up while long
files are read."""
_REMEMBERED_BYTES = 256


class Rows(Protocol):
    """What takes rows."""

    def add(self, row: Any, /) -> None:
        """Takes the next row."""


T = TypeVar("T", bound=Rows)


class Tail(Generic[T]):
    """Hands on the rows of a metrics file, each once.

    Args:
        path: the file, which may come later.
        make: makes what takes the rows: at first, and again where the file does not continue from
            what was read (a run that is resumed cuts its metrics back).
        kind: of the rows, see `muxrl.orchestrator.records.rows`.
    """

    def __init__(self, path: Path, make: Callable[[], T], kind: Any = dict) -> None:
        self._path = path
        self._decode = msgspec.json.Decoder(kind).decode
        self._make = make
        self._restart()

    def _restart(self) -> None:
        self._num_bytes = 0
        self._num_lines = 0
        self._remembered = b""
        self.problem = ""
        """Which line is no row and was left out, in a sentence; "" if all are."""
        self.rows = self._make()
        """What has taken them."""

    def read(self) -> bool:
        """Hands on what has come; an incomplete last line is left for the next time.

        Returns:
            Whether there is more to read at once.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            if self._num_bytes:
                self._restart()
            return False
        with file:
            # The last bytes that were read still stand there, unless it was cut back meanwhile.
            file.seek(self._num_bytes - len(self._remembered))
            if file.read(len(self._remembered)) != self._remembered:
                self._restart()
            until = self._num_bytes + _CHUNK_BYTES
            for begin, line in whole_lines(file, self._num_bytes):
                if begin >= until:
                    return True
                self._num_bytes += len(line)
                self._num_lines += 1
                self._remembered = (self._remembered + line)[-_REMEMBERED_BYTES:]
                if not line.isspace():
                    self._read_line(line)
        return False

    def _read_line(self, line: bytes) -> None:
        try:
            self.rows.add(self._decode(line))
        except (ValueError, TypeError) as error:
            self.problem = str(MalformedMetrics(self._path, self._num_lines, str(error)))
