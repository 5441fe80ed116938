"""Metrics as they happen: one JSON object a line, and the same numbers to TensorBoard.

A line goes to the operating system in one write, so that a process that is killed leaves at most an
incomplete last line, which `read_metrics` skips. A line for which the disk has no room is cut off
again.

Server record, one for each training iteration
    ``time_s, env_steps, agent_steps, episodes, iteration, env_steps_per_s, episode_return_mean,
    weights_seq_no, policy_lag_mean, policy_lag_max, loss, learner: {module_id: {name: float}}``
Joint record, one for each second
    ``time_s, cpu_s, env_steps, episodes, env_steps_per_s, episode_return_mean: {agent_id: float}``;
    `cpu_s` is the processor time of servers and simulations, without the evaluation process; the
    first one after the run was resumed has ``resumed_from``, the env steps of the checkpoint, the
    first one after processes were started again ``restarted``, their names
Evaluation record, one for each condition at each evaluation point
    ``time_s, env_steps, replaced, should_explore, num_episodes, returns: {agent_id: [float]}``;
    `replaced` is the server whose agents acted at random, None where all acted as learned
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from muxrl.orchestrator.errors import CannotRecord, MalformedMetrics
from muxrl.orchestrator.records.json_files import finite
from muxrl.orchestrator.records.run_directory import RunDirectory

logger = logging.getLogger(__name__)

RESERVED_NAMES = frozenset({"joint", "evaluation"})
"""Names that a server cannot have: its metrics would mix with the run's own."""

_FLUSH_S = 10.0  # costs nothing, and is often enough to watch


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the records of one file, oldest first; none if the file is absent.

    An incomplete last line, of a process that was killed, is left out. NaN and infinities were
    written as null and come back as None.

    Raises:
        MalformedMetrics: a line before the last is broken.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):  # no newline after it: the write was cut short
                break
            raise MalformedMetrics(path, number) from None
        if not isinstance(record, dict):
            raise MalformedMetrics(path, number)
        records.append(record)
    return records


class MetricsWriter:
    """Appends a run's metrics to its directory. For one thread at a time.

    Args:
        run_directory: where to; records of an earlier process are kept and added to.
        tensorboard: also write scalars there, tag ``<server_id>/<key>``, step ``env_steps``.
    """

    def __init__(self, run_directory: RunDirectory, tensorboard: bool) -> None:
        self._folder = run_directory.metrics
        self._files: dict[str, IO[bytes]] = {}
        self._is_closed = False
        self._recorded_env_steps = 0
        self._scalars = TensorBoardFile(run_directory.tensorboard) if tensorboard else None

    def server(self, server_id: str, record: Mapping[str, Any]) -> None:
        """Appends one training iteration to ``<server_id>.jsonl``.

        Raises:
            ValueError: the server's name is one of `RESERVED_NAMES` or no file's name.
            CannotRecord: the file cannot be written to.
        """
        if server_id in RESERVED_NAMES or not server_id or Path(server_id).name != server_id:
            raise ValueError(
                f"server {server_id!r} cannot have a metrics file of its name: expected a plain "
                f"name other than {sorted(RESERVED_NAMES)}"
            )
        self._append(server_id, record)
        self._add_scalars(server_id, record, record)

    def joint(self, record: Mapping[str, Any]) -> None:
        """Appends the state of the whole run to ``joint.jsonl``, after all others of its time.

        Raises:
            CannotRecord: the file cannot be written to.
        """
        self._append("joint", record)
        self._recorded_env_steps = int(record["env_steps"])
        self._add_scalars("joint", record, record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Appends one condition of one evaluation to ``evaluation.jsonl``.

        TensorBoard gets each agent's mean return, under ``evaluation/all_learned/<agent_id>`` or
        ``evaluation/<server_id>_random/<agent_id>``.

        Raises:
            CannotRecord: the file cannot be written to.
        """
        self._append("evaluation", record)
        replaced = record.get("replaced")
        condition = "all_learned" if replaced is None else f"{replaced}_random"
        means = {agent_id: _mean(values) for agent_id, values in record["returns"].items()}
        self._add_scalars(f"evaluation/{condition}", means, record)

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
                raise CannotRecord(path, error, self._recorded_env_steps) from error
        return {path.name: path.stat().st_size for path in sorted(self._folder.glob("*.jsonl"))}

    def cut_back(self, lengths: Mapping[str, int], env_steps: int) -> None:
        """Drops all that came after `sync` returned these lengths; before anything is appended.

        TensorBoard is told that what it has after `env_steps` will come once more.

        Raises:
            CannotRecord: a file cannot be cut.
        """
        for path in self._folder.glob("*.jsonl"):
            try:
                if path.stat().st_size > lengths.get(path.name, 0):
                    os.truncate(path, lengths.get(path.name, 0))
            except OSError as error:
                raise CannotRecord(path, error, env_steps) from error
        self._recorded_env_steps = env_steps
        if self._scalars is not None:
            self._scalars.purge(env_steps + 1)

    def cut_back_server(self, server_id: str, length: int) -> None:
        """Drops what a server has recorded since `sync` returned this length of its file.

        TensorBoard keeps it: it can only forget the metrics of all.

        Raises:
            CannotRecord: the file cannot be cut.
        """
        path = self._folder / f"{server_id}.jsonl"
        try:
            if path.exists() and path.stat().st_size > length:
                os.truncate(path, length)
        except OSError as error:
            raise CannotRecord(path, error, self._recorded_env_steps) from error

    def close(self) -> None:
        """Flushes and closes all files; a second call does nothing."""
        self._is_closed = True
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

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
            _write_line(self._files[name], line.encode())
        except OSError as error:
            raise CannotRecord(path, error, self._recorded_env_steps) from error

    def _add_scalars(self, tag: str, values: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        if self._scalars is None:
            return
        for name, number in _scalars(values):
            if name != "env_steps":
                self._scalars.add(f"{tag}/{name}", number, int(record["env_steps"]))


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


def _scalars(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields each finite number of a nested record with its path: ``learner/team/qf_loss``."""
    for name, value in finite(values).items():
        if isinstance(value, Mapping):
            for inner, number in _scalars(value):
                yield f"{name}/{inner}", number
        elif isinstance(value, int | float):
            yield name, float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


class TensorBoardFile:
    """Scalars for TensorBoard.

    They are a copy of what the metrics hold, so they never end a run: once the file cannot be
    written to, one warning is logged and the rest is left out. They are written by the caller's own
    thread: `tensorboardX.SummaryWriter` has one behind a queue, which dies on a full disk, and then
    whoever adds to the queue waits for ever.

    Args:
        folder: where a new event file is made.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # 0.5 s; not every run needs it

        self._folder = folder
        self._writer: Any = None
        self._flushed_at_s = time.monotonic()
        try:
            self._writer = EventsWriter(str(folder / "events"))
        except OSError as error:
            self._give_up(error)

    def add(self, tag: str, number: float, env_steps: int) -> None:
        """Adds a scalar; it is on disk after at most 10 s of further calls, or on `close`."""
        from tensorboardX.summary import scalar

        self._write(step=env_steps, summary=scalar(tag, number))

    def purge(self, env_steps: int) -> None:
        """Lets TensorBoard forget what earlier files say from that step on."""
        from tensorboardX.proto.event_pb2 import SessionLog

        self._write(step=env_steps, session_log=SessionLog(status=SessionLog.START))

    def _write(self, **content: Any) -> None:
        if self._writer is None:
            return
        from tensorboardX.proto.event_pb2 import Event

        try:
            self._writer.write_event(Event(wall_time=time.time(), **content))
            if time.monotonic() - self._flushed_at_s >= _FLUSH_S:
                self._flushed_at_s = time.monotonic()
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Writes what is left and closes the file; a second call does nothing."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._give_up(error)
        self._writer = None

    def _give_up(self, error: OSError) -> None:
        logger.warning(
            "nothing more is written for TensorBoard in %s: %s; the metrics go on",
            self._folder,
            error,
        )
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):  # it tries once more to write what is left
                writer.close()
