"""Appends rows of metrics to files, one JSON object a line, and reads them back.

A line goes to the operating system in one write, so a process that is killed leaves at most an
incomplete last line, which `read_metrics` skips. A line that does not fit on the disk is removed
again.

Each file has one kind of row, see `muxrl.orchestrator.records.rows`: ``SERVER.jsonl`` a row for
each training iteration, ``joint.jsonl`` one for each second, ``evaluation.jsonl`` one for each
condition of each evaluation. A reader that wants all fields, declared or not, reads rows as
``dict``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from muxrl.orchestrator.errors import CannotRecord, MalformedMetrics
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import finite

Row = TypeVar("Row")

_CHUNK_BYTES = 256 * 1024
"""How much is read at a time from the end of a file; most newest rows are within it."""


def iter_rows(path: Path, kind: type[Row]) -> Iterator[Row]:
    """Yields the rows of one file, oldest first; none if the file is absent.

    A run of ten days has a million rows, so keep only what you need of each. An incomplete last
    line, left by a process that was killed, is skipped.

    Args:
        path: the file.
        kind: the type of its rows, or ``dict``.

    Raises:
        MalformedMetrics: a line is broken.
    """
    return (row for _, row in rows_from(path, kind))


def rows_from(path: Path, kind: type[Row], begin: int = 0) -> Iterator[tuple[int, Row]]:
    """Yields the rows of one file from an offset on, each with the offset of its end.

    Args:
        path: the file.
        kind: the type of its rows.
        begin: an offset in bytes; it may be within a line, if the file was cut and has grown since.

    Raises:
        MalformedMetrics: a line is broken.
    """

    def lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        file.seek(max(0, begin - 1))
        return whole_lines(file, begin - 1 + len(file.readline()) if begin else 0)

    return _rows(path, kind, lines)


def last_rows(path: Path, kind: type[Row]) -> Iterator[Row]:
    """Yields the rows of one file, newest first; raises as `iter_rows`."""
    return (row for _, row in _rows(path, kind, _lines_from_end))


def whole_lines(file: IO[bytes], begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and text of each line from `begin` on, without an incomplete last one."""
    file.seek(begin)
    for line in file:
        if not line.endswith(b"\n"):
            return
        yield begin, line
        begin += len(line)


def _lines_from_end(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields the same as `whole_lines`, the last line first."""
    ends = _line_ends(file)
    end = next(ends)
    for begin in ends:
        file.seek(begin)
        yield begin, file.read(end - begin)
        end = begin


def _line_ends(file: IO[bytes]) -> Iterator[int]:
    """Yields the offset after each newline, the last one first, then 0."""
    begin = file.seek(0, os.SEEK_END)
    while begin:
        end, begin = begin, max(0, begin - _CHUNK_BYTES)
        file.seek(begin)
        chunk = file.read(end - begin)
        newline = len(chunk)
        while (newline := chunk.rfind(b"\n", 0, newline)) >= 0:
            yield begin + newline + 1
    yield 0


def _rows(
    path: Path, kind: type[Row], lines: Callable[[IO[bytes]], Iterator[tuple[int, bytes]]]
) -> Iterator[tuple[int, Row]]:
    decode = msgspec.json.Decoder(kind).decode
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for begin, line in lines(file):
            if line.isspace():
                continue
            try:
                row = decode(line)
            except ValueError as error:
                number = sum(place <= begin for place, _ in whole_lines(file))
                raise MalformedMetrics(path, number, str(error)) from None
            yield begin + len(line), row


def last_row(path: Path, kind: type[Row]) -> Row | None:
    """Returns the newest whole row of one file, however long it is; None if there is none.

    Raises:
        MalformedMetrics: the line of that row is broken.
    """
    return next(last_rows(path, kind), None)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns all rows of a file as dicts, see `iter_rows`."""
    return list(iter_rows(path, dict))


class MetricsWriter:
    """Appends a run's metrics to its directory. For one thread at a time.

    Args:
        run_directory: of the run; new rows follow those of an earlier process.
        emit: is called with the name of the file and each row that was written; never raises.
    """

    def __init__(
        self,
        run_directory: RunDirectory,
        emit: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._folder = run_directory.metrics
        self._files: dict[str, IO[bytes]] = {}
        self._is_closed = False
        self.recorded_env_steps = 0
        """The env steps of the newest joint row."""
        self._emit = emit

    def server(self, server_id: str, row: Mapping[str, Any]) -> None:
        """Appends one training iteration to ``<server_id>.jsonl``.

        Args:
            server_id: names the file.
            row: an `IterationRow`, as the server's process sends it.

        Raises:
            CannotRecord: the file cannot be written to, or was removed.
        """
        self._append(server_id, row)

    def joint(self, row: JointRow | Mapping[str, Any]) -> None:
        """Appends the state of the whole run to ``joint.jsonl``, after the other rows of its time.

        Raises:
            CannotRecord: the file cannot be written to.
        """
        self.recorded_env_steps = int(self._append("joint", row)["env_steps"])

    def evaluation(self, row: EvaluationRow | Mapping[str, Any]) -> None:
        """Appends one condition of one evaluation to ``evaluation.jsonl``.

        Raises:
            CannotRecord: the file cannot be written to.
        """
        self._append("evaluation", row)

    def length(self, name: str) -> int:
        """Returns how many bytes are in a file of metrics, 0 if there is none yet."""
        path = self._folder / f"{name}.jsonl"
        return path.stat().st_size if path.exists() else 0

    def sync(self) -> dict[str, int]:
        """Flushes all files to the disk; returns the length of each file in bytes.

        Raises:
            CannotRecord: a file cannot be written to.
        """
        for name, file in self._files.items():
            try:
                os.fsync(file.fileno())
            except OSError as error:
                path = self._folder / f"{name}.jsonl"
                raise CannotRecord(path, error, self.recorded_env_steps) from error
        return {path.name: path.stat().st_size for path in sorted(self._folder.glob("*.jsonl"))}

    def cut_back(self, lengths: Mapping[str, int], env_steps: int) -> None:
        """Cuts files back to lengths that `sync` returned; call it before anything is appended.

        Raises:
            CannotRecord: a file cannot be cut.
        """
        for path in self._folder.glob("*.jsonl"):
            _cut(path, lengths.get(path.name, 0), env_steps)
        self.recorded_env_steps = env_steps

    def cut_back_server(self, server_id: str, length: int) -> None:
        """Cuts a server's file back to a length that `sync` returned.

        Rows that were already passed to `emit` are not taken back.

        Raises:
            CannotRecord: the file cannot be cut.
        """
        _cut(self._folder / f"{server_id}.jsonl", length, self.recorded_env_steps)

    def close(self) -> None:
        """Flushes and closes all files; a second call does nothing."""
        self._is_closed = True
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _append(self, name: str, row: msgspec.Struct | Mapping[str, Any]) -> Mapping[str, Any]:
        """Appends a row to a file; returns the row as plain data."""
        if self._is_closed:
            raise ValueError(f"a row for {name!r} came after the metrics were closed")
        record: Mapping[str, Any] = msgspec.to_builtins(row, enc_hook=lambda value: value.tolist())
        line = json.dumps(finite(record), allow_nan=False, separators=(",", ":")) + "\n"
        path = self._folder / f"{name}.jsonl"
        try:
            if name not in self._files:
                _drop_torn_line(path)
                self._files[name] = path.open("ab", buffering=0)
            file = self._files[name]
            if not os.path.samestat(path.stat(), os.fstat(file.fileno())):  # like a removed file
                raise FileNotFoundError(errno.ENOENT, "another file is in its place")
            _write_line(file, line.encode())
        except OSError as error:
            raise CannotRecord(path, error, self.recorded_env_steps) from error
        if self._emit is not None:
            self._emit(name, record)
        return record


def _write_line(file: IO[bytes], line: bytes) -> None:
    """Appends the whole line or, if the disk has no room for it, nothing."""
    begin = os.fstat(file.fileno()).st_size
    written = 0
    try:
        while written < len(line):  # a write may be partial; only the next one raises
            written += file.write(line[written:])
    finally:
        if written < len(line):
            with contextlib.suppress(OSError):
                file.truncate(begin)


def _cut(path: Path, length: int, env_steps: int) -> None:
    """Cuts a file back to a length; an error names the env steps that are safely recorded."""
    try:
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)
    except OSError as error:
        raise CannotRecord(path, error, env_steps) from error


def _drop_torn_line(path: Path) -> None:
    """Removes an incomplete last line, so that nothing is appended to it."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        file.truncate(next(_line_ends(file)))
