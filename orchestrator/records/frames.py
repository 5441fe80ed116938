"""Runs as pandas frames, for notebooks; pandas, which Ray Tune brings, is imported when needed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.records.metrics import read_metrics
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory

if TYPE_CHECKING:
    from pandas import DataFrame

EVALUATION_COLUMNS = (
    "run",
    "assignment",
    "seed",
    "server",
    "algorithm",
    "agent",
    "env_steps",
    "time_s",
    "is_final",
    "replaced",
    "episode",
    "return",
)


def evaluation_frame(run_dirs: Iterable[Path]) -> DataFrame:
    """Returns every evaluated return of some runs, a row for each agent in each episode.

    Columns are `EVALUATION_COLUMNS`: `server` and `algorithm` are those that serve the agent,
    `env_steps` and `time_s` of training before the evaluation, `replaced` the server whose agents
    acted at random (None: all as learned), `episode` its place in the evaluation, which is the same
    seed in every condition, and `return` the agent's raw one.

    Raises:
        NotARunDirectory, MalformedMetrics: as `RecordedRun.read`.
    """
    from pandas import DataFrame

    rows: list[tuple[Any, ...]] = []
    for run_dir in run_dirs:
        run = RecordedRun.read(run_dir)
        server_of = {agent: s for s, server in run.servers.items() for agent in server.agents}
        for record in read_metrics(RunDirectory.open(run_dir).metrics / "evaluation.jsonl"):
            for agent, returns in record["returns"].items():
                server_id = server_of[agent]
                about = (
                    *(run.name, run.assignment, run.seed),
                    *(server_id, run.servers[server_id].algorithm, agent),
                    *(record["env_steps"], record["time_s"], bool(record.get("is_final"))),
                    record["replaced"],
                )
                rows += [(*about, episode, value) for episode, value in enumerate(returns)]
    return DataFrame(rows, columns=list(EVALUATION_COLUMNS))
