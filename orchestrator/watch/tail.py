"""Follows a file of JSON lines that grows, and is cut back at times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from muxrl.orchestrator.errors import MalformedMetrics
from muxrl.orchestrator.records.metrics import whole_lines

_CHUNK_BYTES = 4 * 2**20
"""Bytes to read in one call, up to a line's end. They take half a second to parse, so that a page
appears while long files are read."""
_REMEMBERED_BYTES = 256


class Rows(Protocol):
    """A receiver of rows."""

    def add(self, row: Any, /) -> None:
        """Takes the next row."""


T = TypeVar("T", bound=Rows)


class Tail(Generic[T]):
    """Passes on each row of a metrics file once.

    Args:
        path: of the file, which may not exist yet.
        make: makes the receiver of the rows. It is called at first, and again if the file does not
            continue from what was read, since a resumed run cuts its metrics back.
        kind: class of the rows; see `muxrl.orchestrator.records.rows`.
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
        """A sentence on the last line that is no row, and was left out; "" if there is none."""
        self.rows = self._make()
        """The receiver of the rows."""

    def read(self) -> bool:
        """Passes on new rows, without an incomplete last line.

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
            # The last bytes that were read are still there, unless the file was cut back.
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
