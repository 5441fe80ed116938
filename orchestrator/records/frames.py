"""Returns the records of runs as pandas frames.

An unknown value is None in a column of text, and NaN in a column of numbers. pandas, which Ray Tune
brings, is imported when needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.config.merge import flat
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.evaluations import RETURN
from muxrl.orchestrator.records.metrics import iter_rows
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> DataFrame:
    """Returns a frame that keeps None in columns of text.

    pandas 3 turns a column of text and None into its text type, in which None becomes NaN and ``is
    None`` never holds. Here such a column has dtype object. Numbers and None make floats.

    Args:
        columns: the names of the columns.
        rows: of each row, a value for each column.
    """
    from pandas import DataFrame, Series

    gathered = list(zip(*rows, strict=True)) or [()] * len(columns)
    return DataFrame(
        {
            name: Series(list(values), dtype=object if _holds_objects(values) else None)
            for name, values in zip(columns, gathered, strict=True)
        },
        columns=list(columns),
    )


def _holds_objects(values: Sequence[Any]) -> bool:
    """Whether the values include None, and are not otherwise all numbers."""
    known = [value for value in values if value is not None]
    return len(known) < len(values) and not (
        known and all(isinstance(value, int | float) for value in known)
    )


_RUN_COLUMNS = ("run", "assignment", "seed")
_AT_COLUMNS = ("agent", "env_steps", "time_s", "is_final", "replaced", "episode")
EVALUATION_COLUMNS = (*_RUN_COLUMNS, "server", "algorithm", *_AT_COLUMNS, "return")
METRIC_COLUMNS = (*_RUN_COLUMNS, "metric", "server", *_AT_COLUMNS, "value")


def evaluation_frame(run_dirs: Iterable[Path]) -> DataFrame:
    """Returns every evaluated return of some runs, a row for each agent in each episode.

    Columns are `EVALUATION_COLUMNS`: `server` and `algorithm` served the agent at that time,
    `env_steps` and `time_s` are those of training before the evaluation, `replaced` is the server
    whose agents acted at random (None: all as learned; ``SERVER:untrained``, ``SERVER=SHADOW``: see
    `muxrl.orchestrator.records.conditions`), `episode` is the episode's index in the evaluation
    (the same seed in every condition), and `return` is the agent's raw return.

    Raises:
        NotARunDirectory: a folder is no run's, or its ``plan.json`` is absent or broken.
        MalformedMetrics: a file of evaluations is broken elsewhere than in its last line.
    """
    rows = (
        [*run, server_id, algorithm, *rest]
        for run, name, server_id, algorithm, *rest in _values(run_dirs)
        if name == RETURN
    )
    return frame_of(EVALUATION_COLUMNS, rows)


def metric_frame(run_dirs: Iterable[Path]) -> DataFrame:
    """Returns every evaluated metric of some runs, a row for each episode that had it.

    Columns are `METRIC_COLUMNS`: `metric` is the metric's name, `agent` has the metric and `server`
    serves that agent, both None for a metric of the whole episode; the others as in
    `evaluation_frame`.

    Raises:
        NotARunDirectory, MalformedMetrics: as `evaluation_frame`.
    """
    rows = (
        [*run, name, server_id, None if who == COMMON else who, *at, value]
        for run, name, server_id, _, who, *at, value in _values(run_dirs)
        if name != RETURN and value is not None
    )
    return frame_of(METRIC_COLUMNS, rows)


def _values(run_dirs: Iterable[Path]) -> Iterator[tuple[Any, ...]]:
    """Yields a tuple for each number of each evaluation.

    It has a tuple of the values of `_RUN_COLUMNS`, the name of the metric or `RETURN`, the server
    that acted, its algorithm, the values of `_AT_COLUMNS`, and the number.
    """
    for run_dir in run_dirs:
        folder = RunDirectory.open(run_dir)
        plan = folder.read_plan()
        run = (folder.path.resolve().name, plan.assignment, plan.seed)
        rows = list(iter_rows(folder.metrics / "evaluation.jsonl", EvaluationRow))
        acted: dict[int, set[str]] = {}  # also servers that a shadow follows or replaced
        for row in rows:
            acted.setdefault(row.env_steps, set()).add(Condition.of_row(row).server_id or "")
        for row in rows:
            server_of = plan.server_of
            for server_id in (*acted[row.env_steps], Condition.of_row(row).shadow):
                if server_id:
                    server_of |= dict.fromkeys(plan.servers[server_id].agents, server_id)
            at = (row.env_steps, row.time_s, row.is_final, row.replaced)
            for name, by_agent in {RETURN: row.returns, **row.metrics}.items():
                for agent, values in by_agent.items():
                    server = server_of.get(agent)
                    algorithm = server and plan.servers[server].algorithm
                    for episode, value in enumerate(values):
                        yield run, name, server, algorithm, agent, *at, episode, value


def training_frame(run_dirs: Iterable[Path]) -> DataFrame:
    """Returns the training metrics of some runs, a row for each iteration of each server.

    Columns: `run`, `assignment`, `seed`, `server`, `algorithm`, the fields of a server's rows (see
    `records.rows.IterationRow`: `time_s` and `env_steps` of the iteration, `episode_return_mean`
    with exploration, `loss`, ...), and ``learner.POLICY.NAME`` for each number of its learner.
    A value that a server does not report is NaN. Servers that do not learn have no rows.

    Raises:
        NotARunDirectory, MalformedMetrics: as `evaluation_frame`, of the servers' files.
    """
    records: list[dict[str, Any]] = []
    always = (*_RUN_COLUMNS, "server", "algorithm")
    for run_dir in run_dirs:
        folder = RunDirectory.open(run_dir)
        plan = folder.read_plan()
        run = (folder.path.resolve().name, plan.assignment, plan.seed)
        for server_id, server in plan.servers.items():
            about = dict(zip(always, (*run, server_id, server.algorithm), strict=True))
            # As dicts: a server of another version may report other fields.
            for row in iter_rows(folder.metrics / f"{server_id}.jsonl", dict):
                records.append(about | flat(row))
    columns = list(
        dict.fromkeys([*always, "time_s", "env_steps", *(key for one in records for key in one)])
    )
    return frame_of(columns, ([record.get(key) for key in columns] for record in records))
