"""Metrics as they happen: one JSON object a line, and the same rows to whoever else takes them.

A line goes to the operating system in one write, so that a process that is killed leaves at most an
incomplete last line, which `read_metrics` skips. A line for which the disk has no room is cut off
again.

Server record, one for each training iteration
    ``time_s, env_steps, agent_steps, episodes, iteration, env_steps_per_s, episode_return_mean,
    weights_seq_no, policy_lag_mean, policy_lag_max, loss, learner: {module_id: {name: float}}``
Joint record, one for each second
    ``time_s, cpu_s, env_steps, episodes, env_steps_per_s, episode_return_mean: {agent_id: float},
    metrics: {metric: {agent_id or "__common__": float}}``, both means over recent episodes;
    `cpu_s` is the processor time of servers and simulations, without the evaluation process; the
    first one after the run was resumed has ``resumed_from``, the env steps of the checkpoint, the
    first one after processes were started again ``restarted``, their names; where agents acted at
    random, since their server was lost, ``num_random_episodes: {server_id: int}`` counts them;
    ``servers: {server_id: {time_s, learning_s, held_s, num_refused, weights_seq_no}}``, each but
    the last since the server's process began (`muxrl.servers.feed.Activity`, and how many items it
    refused), and of the time since the last record ``exchange_p50_s, exchange_p99_s,
    forward_p50_s, forward_p99_s``, where it was asked anything (`muxrl.servers.latency`); of one
    that is being started again ``{is_lost: true}``
Evaluation record, one for each condition at each evaluation point
    ``time_s, env_steps, env_steps_played, replaced, should_explore, num_episodes,
    returns: {agent_id: [float]}, metrics: {metric: {agent_id or "__common__": [float]}}``, where
    null is an episode without it; `env_steps` is the point for which it stands, a multiple of the
    interval or the budget, by which runs are compared, `env_steps_played` also counts what open
    episodes have played beyond it, and older runs lack it;
    `replaced` is the server whose agents acted at random, None where all acted as learned; beside
    these there are ``SERVER:untrained``, ``SERVER/SIDE`` and ``SERVER/SIDE:untrained``
    (`muxrl.orchestrator.records.conditions`), those of a side with ``agents: [agent_id]``
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from muxrl.orchestrator.errors import CannotRecord, MalformedMetrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import finite

RESERVED_NAMES = frozenset({"joint", "evaluation"})
"""Names that a server cannot have: its metrics would mix with the run's own."""

_LAST_BYTES = 256 * 1024
"""Read at first for the newest records: holds the last evaluation, under all conditions."""


def iter_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of one file, oldest first; none if the file is absent.

    A run of ten days has a million of them, so whoever needs few numbers of each keeps those. An
    incomplete last line, of a process that was killed, is left out. NaN and infinities were written
    as null and come back as None.

    Raises:
        MalformedMetrics: a line before the last is broken.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                if not line.endswith(b"\n"):  # the write was cut short
                    return
                raise MalformedMetrics(path, number) from None
            if not isinstance(record, dict):
                raise MalformedMetrics(path, number)
            yield record


def last_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the newest whole records of one file, the newest first; of a long file not all.

    Raises:
        MalformedMetrics: a line is broken.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    whole: list[bytes] = []
    with file:
        end = file.seek(0, os.SEEK_END)
        for num_bytes in (_LAST_BYTES, end):  # all of it, for a record that is so long
            file.seek(max(0, end - num_bytes))
            lines = file.read().split(b"\n")[:-1]  # the last one has no end yet
            # What was read may begin inside of a line.
            whole = [line for line in lines[num_bytes < end :] if line.strip()]
            if whole:
                break
    for num_newer, line in enumerate(reversed(whole)):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise MalformedMetrics(path, path.read_bytes().count(b"\n") - num_newer)
        yield record


def last_record(path: Path) -> dict[str, Any] | None:
    """Returns the newest whole record of one file, however long it is; None if there is none.

    Raises:
        MalformedMetrics: that line is broken.
    """
    return next(last_records(path), None)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns all records of `iter_metrics`."""
    return list(iter_metrics(path))


class MetricsWriter:
    """Appends a run's metrics to its directory. For one thread at a time.

    Args:
        run_directory: where to; records of an earlier process are kept and added to.
        take: is called with the name of its file and each record that was written; never raises.
    """

    def __init__(
        self,
        run_directory: RunDirectory,
        take: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._folder = run_directory.metrics
        self._files: dict[str, IO[bytes]] = {}
        self._is_closed = False
        self.recorded_env_steps = 0
        """Those of the newest joint record."""
        self._take = take

    def server(self, server_id: str, record: Mapping[str, Any]) -> None:
        """Appends one training iteration to ``<server_id>.jsonl``.

        Raises:
            ValueError: the server's name is one of `RESERVED_NAMES` or no file's name.
            CannotRecord: the file cannot be written to, or was removed.
        """
        if server_id in RESERVED_NAMES or not server_id or Path(server_id).name != server_id:
            raise ValueError(
                f"server {server_id!r} cannot have a metrics file of its name: expected a plain "
                f"name other than {sorted(RESERVED_NAMES)}"
            )
        self._append(server_id, record)

    def joint(self, record: Mapping[str, Any]) -> None:
        """Appends the state of the whole run to ``joint.jsonl``, after all others of its time.

        Raises:
            CannotRecord: the file cannot be written to.
        """
        self._append("joint", record)
        self.recorded_env_steps = int(record["env_steps"])

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Appends one condition of one evaluation to ``evaluation.jsonl``.

        Raises:
            CannotRecord: the file cannot be written to.
        """
        self._append("evaluation", record)

    def length(self, name: str) -> int:
        """Returns how many bytes are in a file of metrics, 0 if there is none yet."""
        path = self._folder / f"{name}.jsonl"
        return path.stat().st_size if path.exists() else 0

    def sync(self) -> dict[str, int]:
        """Has all that was written be on the disk; returns the length of each file in bytes.

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
        """Drops all that came after `sync` returned these lengths; before anything is appended.

        Raises:
            CannotRecord: a file cannot be cut.
        """
        for path in self._folder.glob("*.jsonl"):
            _cut(path, lengths.get(path.name, 0), env_steps)
        self.recorded_env_steps = env_steps

    def cut_back_server(self, server_id: str, length: int) -> None:
        """Drops what a server has recorded since `sync` returned this length of its file.

        Whoever takes the rows, too, keeps it.

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if self._is_closed:
            raise ValueError(f"a record for {name!r} came after the metrics were closed")
        line = json.dumps(finite(record), allow_nan=False, separators=(",", ":")) + "\n"
        path = self._folder / f"{name}.jsonl"
        try:
            if name not in self._files:
                _drop_torn_line(path)
                self._files[name] = path.open("ab", buffering=0)
            file = self._files[name]
            if not os.path.samestat(path.stat(), os.fstat(file.fileno())):  # as if removed
                raise FileNotFoundError(errno.ENOENT, "another file is in its place")
            _write_line(file, line.encode())
        except OSError as error:
            raise CannotRecord(path, error, self.recorded_env_steps) from error
        if self._take is not None:
            self._take(name, record)


def _write_line(file: IO[bytes], line: bytes) -> None:
    """Appends the whole line or, where the disk has no room for it, nothing."""
    begin = os.fstat(file.fileno()).st_size
    written = 0
    try:
        while written < len(line):  # the system may take a part, and say why only then
            written += file.write(line[written:])
    finally:
        if written < len(line):
            with contextlib.suppress(OSError):
                file.truncate(begin)


def _cut(path: Path, length: int, env_steps: int) -> None:
    """Drops what a file has beyond a length; `env_steps` are those up to which nothing is lost."""
    try:
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)
    except OSError as error:
        raise CannotRecord(path, error, env_steps) from error


def _drop_torn_line(path: Path) -> None:
    """Cuts what follows the last newline, so that nothing is appended to an incomplete line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
