"""Metrics as they happen: one JSON object a line, and the same numbers to TensorBoard.

A line goes to the operating system in one write, so that a killed process leaves at most its
last line torn, and `read_metrics` passes over that one.

Server record, one for each training iteration
    ``time_s, env_steps, agent_steps, episodes, iteration, env_steps_per_s, episode_return_mean,
    weights_seq_no, policy_lag_mean, policy_lag_max, loss, learner: {module_id: {name: float}}``
Joint record, one for each second
    ``time_s, cpu_s, env_steps, episodes, env_steps_per_s, episode_return_mean: {agent_id: float}``;
    `cpu_s` is the processor time of servers and simulations, without the evaluation process
Evaluation record, one for each condition at each evaluation point
    ``time_s, env_steps, replaced, should_explore, num_episodes, returns: {agent_id: [float]}``;
    `replaced` is the server whose agents acted at random, None where all acted as learned
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from muxrl.orchestrator.records.json_files import finite
from muxrl.orchestrator.records.run_directory import RunDirectory

RESERVED_NAMES = frozenset({"joint", "evaluation"})
"""Names a server cannot have, since its metrics would mix with the run's own."""
_TENSORBOARD_FLUSH_S = 10  # seldom enough to cost nothing, often enough to watch


class MalformedMetrics(Exception):
    """A line other than the last of a metrics file is not a JSON object.

    Attributes:
        path: the file.
        line: counted from 1.
    """

    def __init__(self, path: Path, line: int) -> None:
        super().__init__(
            f"{path}, line {line}, is not a JSON object though other lines follow; did something "
            "other than muxrl write to this file?"
        )
        self.path = path
        self.line = line


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of one file, oldest first; none if the file is absent.

    A last line that was torn by a kill is left out. NaN and infinities were written as null and
    come back as None.

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
        self._scalars: Any = None
        if tensorboard:
            from tensorboardX import SummaryWriter  # an import of 0.5 s that not every run needs

            self._scalars = SummaryWriter(
                str(run_directory.tensorboard), flush_secs=_TENSORBOARD_FLUSH_S
            )

    def server(self, server_id: str, record: Mapping[str, Any]) -> None:
        """Append one training iteration to ``<server_id>.jsonl``.

        Raises:
            ValueError: the server's name is one of `RESERVED_NAMES` or no file's name.
            OSError: the disk is full or gone.
        """
        if server_id in RESERVED_NAMES or not server_id or Path(server_id).name != server_id:
            raise ValueError(
                f"server {server_id!r} cannot have a metrics file of its name: expected a plain "
                f"name other than {sorted(RESERVED_NAMES)}"
            )
        self._append(server_id, record)
        self._add_scalars(server_id, record, record)

    def joint(self, record: Mapping[str, Any]) -> None:
        """Append the state of the whole run to ``joint.jsonl``.

        Raises:
            OSError: the disk is full or gone.
        """
        self._append("joint", record)
        self._add_scalars("joint", record, record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Append one condition of one evaluation to ``evaluation.jsonl``.

        TensorBoard gets each agent's mean return, under ``evaluation/all_learned/<agent_id>`` or
        ``evaluation/<server_id>_random/<agent_id>``.

        Raises:
            OSError: the disk is full or gone.
        """
        self._append("evaluation", record)
        replaced = record.get("replaced")
        condition = "all_learned" if replaced is None else f"{replaced}_random"
        means = {agent_id: _mean(values) for agent_id, values in record["returns"].items()}
        self._add_scalars(f"evaluation/{condition}", means, record)

    def close(self) -> None:
        """Flush and close everything; a second call does nothing."""
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
        if name not in self._files:
            path = self._folder / f"{name}.jsonl"
            _drop_torn_line(path)
            self._files[name] = path.open("ab", buffering=0)
        self._files[name].write(line.encode())

    def _add_scalars(self, tag: str, values: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        if self._scalars is None:
            return
        for name, number in _scalars(values):
            if name != "env_steps":
                self._scalars.add_scalar(f"{tag}/{name}", number, int(record["env_steps"]))


def _drop_torn_line(path: Path) -> None:
    """Cut what follows the last newline, so that a resumed run does not append to half a line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def _scalars(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every finite number in a nested record, with its path: ``learner/team/qf_loss``."""
    for name, value in finite(values).items():
        if isinstance(value, Mapping):
            for inner, number in _scalars(value):
                yield f"{name}/{inner}", number
        elif isinstance(value, int | float):
            yield name, float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
