"""One run in one tracker, from its description to its report, from the run's files.

The run's process itself feeds a local tracker (TensorBoard). Any other tracker has a process beside
the run, which follows the run's files. This process ends soon after the run closes its standard
input. All that it prints goes to its log, whose last line says why it has failed. `feed_tracker`
feeds any tracker after the run.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from muxrl.orchestrator.config.merge import leaves
from muxrl.orchestrator.config.trackers import EXAMPLE, TRACKERS
from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.metrics import rows_from
from muxrl.orchestrator.records.plan import Role, roles_of
from muxrl.orchestrator.records.rows import AgentReturns, EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.records.series import mean_of_episodes
from muxrl.orchestrator.storage.json_files import finite
from muxrl.orchestrator.supervise.child import when_alone
from muxrl.orchestrator.trackers.tracker import TrackedRun, Tracker
from muxrl.orchestrator.user_modules import find_user_modules
from muxrl.servers.import_by_name import import_by_name

logger = logging.getLogger(__name__)

_FOLDER = "trackers"
_REPORT = ("report.html", "summary.md", "summary.json", "plots/learning.png")
Row = tuple[str, Mapping[str, Any]]
"""The name of a metrics file, and one of its rows."""
_INTERVAL_S = 1.0
"""Seconds between two looks at the files, which grow about as often."""
_NICENESS = 10
"""The run's own processes come first."""


class Session:
    """One run in one tracker. Every call raises whatever the tracker raises.

    Args:
        name: of the tracker, as in the config.
        run: to be tracked. If it is resumed, the run that the tracker already has continues.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._folder = run.folder
        self._roles = roles_of(RunDirectory(run.folder).read_plan())
        self._tracker = _make_tracker(name)
        note = run.folder / _FOLDER / f"{name.replace(':', '.')}.txt"
        if run.resumed_at is not None and note.is_file():
            run = replace(run, known_as=note.read_text(encoding="utf-8").strip())
        self.known_as = self._tracker.start(run)
        """The tracker's id of the run."""
        if self.known_as:
            note.parent.mkdir(exist_ok=True)
            note.write_text(f"{self.known_as}\n", encoding="utf-8")

    def receive(self, name: str, record: Mapping[str, Any]) -> None:
        """Logs a row of ``metrics/NAME.jsonl``."""
        if row := numbers(name, record, self._roles):
            self._tracker.log(row, int(record["env_steps"]))

    def end(self, state: str) -> None:
        """Hands over the files of the report that exist, and ends the tracker's run."""
        files = [self._folder / name for name in _REPORT]
        if present := [path for path in files if path.is_file()]:
            self._tracker.artifacts(present)
        self._tracker.end(state)

    def abandon(self) -> None:
        """Ends the run of a tracker that has failed, if that is still possible."""
        with contextlib.suppress(Exception):  # its failure was reported before
            self._tracker.end("failed")


def end_state(folder: RunDirectory) -> str:
    """Returns how a run ended, for `Tracker.end`; "interrupted" if it was cut off.

    Raises:
        NotARunDirectory: the run's ``status.json`` is broken.
    """
    status = read_status(folder)
    return status.state if status is not None and status.has_ended else "interrupted"


def state_at_end(folder: RunDirectory) -> str:
    """Returns `end_state`; logs a warning and returns "interrupted" if it cannot be read."""
    try:
        return end_state(folder)
    except (NotARunDirectory, OSError) as error:
        logger.warning(
            "the run's end cannot be read, so its trackers get the state 'interrupted': %s", error
        )
        return "interrupted"


def describe(folder: RunDirectory, resumed_at: int | None = None) -> TrackedRun:
    """Returns the description of a run for trackers.

    Args:
        folder: the run's directory.
        resumed_at: env steps at which the run continues; None: it is new, or over.

    Raises:
        NotARunDirectory: the run's ``plan.json`` or ``config.yaml`` is absent or broken.
    """
    plan = folder.read_plan()
    path = folder.path.resolve()
    config = _read_yaml(folder, path / "config.yaml")
    sweep = folder.sweep
    named = config if sweep is None else _read_yaml(folder, sweep / "sweep.yaml")
    return TrackedRun(
        path,
        str(named.get("name") or folder.name),
        plan.assignment,
        _without_tokens(config),
        "" if sweep is None else sweep.name,
        resumed_at,
    )


def _read_yaml(folder: RunDirectory, path: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise NotARunDirectory(folder.path, f"its {path.name} cannot be read: {error}") from error


def _without_tokens(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _without_tokens(value) for key, value in tree.items() if key != "token"}
    return tree


def _make_tracker(name: str) -> Tracker:
    path = TRACKERS[name].path if name in TRACKERS else name
    return import_by_name(path, EXAMPLE)()


def numbers(name: str, record: Mapping[str, Any], roles: Sequence[Role] = ()) -> dict[str, float]:
    """Returns the finite numbers of one row, by name.

    A server's numbers are under ``SERVER/``, the run's under ``joint/``, with the path in the row:
    ``prey/learner/team/qf_loss``. In an evaluation each agent's mean return is under
    ``evaluation/all_learned/AGENT``, ``evaluation/SERVER_random/AGENT`` or
    ``evaluation/SERVER_untrained/AGENT``, and each metric's mean under
    ``evaluation/all_learned/metrics/METRIC/AGENT`` and so on. Under ``joint/``, and beside the
    agents of an evaluation, are the means over roles, ``returns/SERVER`` or
    ``returns/SERVER/ROLE``, and the sum over all agents, ``returns/total``.

    Args:
        name: of the row's file, without its extension.
        record: the row; see `muxrl.orchestrator.records.rows`.
        roles: of all agents of the run.
    """
    if name == "evaluation":
        row = msgspec.convert(record, EvaluationRow)
        at = f"evaluation/{Condition.of_row(row).label}"
        parts = {"": row.returns} | {f"metrics/{m}/": values for m, values in row.metrics.items()}
        of_agents = {
            f"{at}/{part}{agent_id}": value
            for part, by_agent in parts.items()
            for agent_id in by_agent
            if (value := mean_of_episodes(by_agent, [agent_id])) is not None
        }
        return of_agents | _of_roles(at, row.returns, roles)
    plain = finite(record)
    found = {
        "/".join((name, *path)): float(x)
        for path, x in leaves(plain)
        if isinstance(x, int | float) and path != ("env_steps",)
    }
    if name != "joint":
        return found
    means = plain.get("episode_return_mean", {})
    # Rows of older runs lack `returns`.
    return _of_roles(name, {agent: [mean] for agent, mean in means.items()}, roles) | found


def _of_roles(at: str, returns: AgentReturns, roles: Sequence[Role]) -> dict[str, float]:
    found = {f"{at}/returns/{role.key}": mean_of_episodes(returns, role.agents) for role in roles}
    agents = [agent for role in roles for agent in role.agents]
    found[f"{at}/returns/total"] = mean_of_episodes(returns, agents, is_sum=True)
    return {key: value for key, value in found.items() if value is not None}


def main() -> None:
    """Follows a run until it is over; prints why and exits with code 1 if the tracker fails."""
    tracker, path, resumed_at, lengths = json.loads(sys.argv[1])
    folder = RunDirectory(Path(path))
    os.nice(_NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    find_user_modules()
    is_over = threading.Event()
    when_alone(is_over.set)
    try:
        session = Session(tracker, describe(folder, resumed_at))
        is_last = False
        while not is_last:
            is_last = is_over.wait(_INTERVAL_S)
            for name, record in new_rows(folder, lengths):
                session.receive(name, record)
        session.end(state_at_end(folder))
    except Exception as error:  # noqa: BLE001  # a tracker may raise anything
        traceback.print_exc()
        sys.stderr.write(f"{describe_failure(error)}\n")
        sys.stderr.flush()
        os._exit(1)  # exit handlers of the tracker may wait for the same server


def new_rows(folder: RunDirectory, lengths: dict[str, int]) -> Iterator[Row]:
    """Yields the new rows of all files by env steps; rows of one file stay in their order.

    Args:
        folder: of the run.
        lengths: by file: the number of bytes that were read; kept up to date.

    Raises:
        MalformedMetrics: a line is broken.
        OSError: a file cannot be read.
    """
    files = sorted(folder.metrics.glob("*.jsonl"))
    rows = (_rows_of(path, lengths) for path in files)
    return heapq.merge(*rows, key=lambda row: int(row[1]["env_steps"]))


def _rows_of(path: Path, lengths: dict[str, int]) -> Iterator[Row]:
    # A server that is started again drops the rows that it wrote after its checkpoint.
    lengths[path.name] = min(lengths.get(path.name, 0), path.stat().st_size)
    for end, row in rows_from(path, dict, lengths[path.name]):
        lengths[path.name] = end
        yield path.stem, row


def describe_failure(error: Exception) -> str:
    """Returns an error's class and the first line of its text."""
    text = " ".join(str(error).splitlines()[:1])
    return f"{type(error).__name__}: {text}"
