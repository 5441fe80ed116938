"""A run as its files tell it, whole or cut short: returns put together, and as a pandas frame.

pandas, which Ray Tune brings, is imported when needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.metrics import read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import RunStatus, read_status

if TYPE_CHECKING:
    from pandas import DataFrame

Floats = NDArray[np.float64]
AgentReturns = Mapping[str, Sequence[float | None]]
"""For each agent, one return for each episode; None where it was not in it."""


def returns_by_episode(
    by_agent: AgentReturns, agents: Sequence[str], *, is_sum: bool = False
) -> Floats:
    """Returns for each episode the mean return over some agents, or their sum.

    An agent that was not in an episode does not count there. An episode with none of the agents is
    NaN and keeps its place, so that evaluations on the same episodes can be paired.

    Args:
        by_agent: may lack some of the agents, and hold fewer episodes for some than for others.
        agents: whose returns.
        is_sum: whether to add them up instead of averaging.

    Returns:
        ``[num_episodes]``; empty if `by_agent` has none of the agents.
    """
    rows = [by_agent[agent] for agent in agents if agent in by_agent]
    if not rows:
        return np.empty(0)
    table = np.full((len(rows), max(map(len, rows))), math.nan)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = [math.nan if value is None else value for value in values]
    counts = np.isfinite(table).sum(axis=0)
    totals = np.where(counts > 0, np.nansum(table, axis=0), math.nan)
    return totals if is_sum else totals / np.maximum(counts, 1)


@dataclass(frozen=True)
class PlannedServer:
    """Who a server was to play, and how."""

    algorithm: str
    agents: tuple[str, ...]
    learns: bool = True
    """Whether its policies changed during the run."""


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: the same weights under every condition that was measured."""

    env_steps: int
    """Env steps of training before it."""
    returns: Mapping[str | None, AgentReturns]
    """By whose agents acted at random; None: all acted as learned."""
    time_s: float = math.nan
    """Seconds of training before it; NaN where it was not recorded."""

    def returns_of(self, agents: Sequence[str], replaced: str | None) -> Floats | None:
        """For each episode, the mean return over `agents`; None if that was not measured.

        An agent that was not in an episode does not count there; an episode that had none of
        them is NaN, so that all conditions keep their places, by which they are paired. None, too,
        if no episode had any.
        """
        returns = returns_by_episode(self.returns.get(replaced, {}), agents)
        return returns if np.isfinite(returns).any() else None


@dataclass(frozen=True)
class TrainingCurve:
    """Returns while training, exploration included."""

    env_steps: Floats
    returns: Floats
    """At each, the mean over recent episodes and the server's agents."""


@dataclass(frozen=True)
class RecordedRun:
    """All that a report needs of one run."""

    name: str
    assignment: str
    seed: int | None
    servers: Mapping[str, PlannedServer]
    points: tuple[EvaluationPoint, ...]
    """By env steps, no two at the same."""
    should_explore: bool | None
    """Whether evaluated policies sampled their actions; None if nothing was evaluated."""
    training: Mapping[str, TrainingCurve]
    """By server; one that never finished an episode has an empty curve."""
    env_steps: Mapping[str, int]
    """By server, those that its last training iteration had seen."""
    status: RunStatus | None = None
    """How the run ended; None where nobody wrote that down."""
    resumed_at: tuple[int, ...] = ()
    """Env steps of the checkpoints from which it was resumed."""
    restarted_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By process, the env steps at which it was lost and started again."""
    num_lost_episodes: int = 0
    """Training episodes that were closed early since a process was lost."""

    @classmethod
    def read(cls, path: Path) -> RecordedRun:
        """Read a run back from its directory; metrics that are absent count as none.

        Raises:
            NotARunDirectory: the folder is no run's, or its ``plan.json`` is absent or broken.
            MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        """
        directory = RunDirectory.open(path)
        plan = directory.read_plan()
        try:
            servers = {
                server_id: PlannedServer(
                    str(server["algorithm"]),
                    tuple(server["agents"]),
                    bool(server.get("learns", True)),
                )
                for server_id, server in plan["servers"].items()
            }
        except (KeyError, TypeError) as error:
            raise NotARunDirectory(
                path, f"a server in its plan.json has no algorithm or agents ({error!r})"
            ) from error
        joint = read_metrics(directory.metrics / "joint.jsonl")
        evaluations = read_metrics(directory.metrics / "evaluation.jsonl")
        iterations = {
            server_id: read_metrics(directory.metrics / f"{server_id}.jsonl")
            for server_id in servers
        }
        should_explore = bool(evaluations[-1].get("should_explore")) if evaluations else None
        return cls(
            name=directory.path.resolve().name,
            assignment=str(plan.get("assignment", "")),
            seed=plan.get("seed"),
            servers=servers,
            points=_points(
                e for e in evaluations if bool(e.get("should_explore")) == should_explore
            ),
            should_explore=should_explore,
            training={
                server_id: _training_curve(joint, iterations[server_id], server.agents)
                for server_id, server in servers.items()
            },
            env_steps={
                server_id: _last_env_steps(records) or _last_env_steps(joint)
                for server_id, records in iterations.items()
            },
            status=read_status(directory),
            resumed_at=tuple(r["resumed_from"] for r in joint if "resumed_from" in r),
            restarted_at=_restarted_at(joint),
            num_lost_episodes=int(joint[-1].get("num_lost_episodes", 0)) if joint else 0,
        )


def _restarted_at(joint: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    at: dict[str, list[int]] = {}
    for record in joint:
        for name in record.get("restarted", ()):
            at.setdefault(name, []).append(int(record["env_steps"]))
    return {name: tuple(env_steps) for name, env_steps in at.items()}


def _points(evaluations: Iterable[Mapping[str, Any]]) -> tuple[EvaluationPoint, ...]:
    """Gather the conditions of each evaluation.

    A condition seen again begins the next evaluation, so that a point holds together even where
    training went on meanwhile and its records differ by a few env steps. Two evaluations at the
    same env step (the last of training and the final one) are one; the later counts.
    """
    gathered: list[tuple[int, float, dict[str | None, AgentReturns]]] = []
    for record in evaluations:
        replaced = record["replaced"]
        if not gathered or replaced in gathered[-1][2]:
            gathered.append((int(record["env_steps"]), float(record.get("time_s", math.nan)), {}))
        gathered[-1][2][replaced] = record["returns"]
    merged: dict[int, dict[str | None, AgentReturns]] = {}
    times: dict[int, float] = {}
    for env_steps, time_s, returns in gathered:
        merged.setdefault(env_steps, {}).update(returns)
        times.setdefault(env_steps, time_s)
    return tuple(EvaluationPoint(n, merged[n], times[n]) for n in sorted(merged))


def _training_curve(
    joint: Sequence[Mapping[str, Any]],
    iterations: Sequence[Mapping[str, Any]],
    agents: Sequence[str],
) -> TrainingCurve:
    """From the joint records, which count raw rewards as evaluations do; else the server's own."""
    pairs: list[tuple[float, float]] = []
    for record in joint:
        by_agent = record.get("episode_return_mean") or {}
        known = [by_agent[a] for a in agents if by_agent.get(a) is not None]
        if known:
            pairs.append((record["env_steps"], sum(known) / len(known)))
    if not pairs:
        pairs = [
            (record["env_steps"], record["episode_return_mean"])
            for record in iterations
            if record.get("episode_return_mean") is not None
        ]
    kept: list[tuple[float, float]] = []
    for pair in pairs:
        while kept and kept[-1][0] >= pair[0]:  # resumed from a checkpoint before these
            kept.pop()
        kept.append(pair)
    table = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return TrainingCurve(table[:, 0], table[:, 1])


def _last_env_steps(records: Sequence[Mapping[str, Any]]) -> int:
    return int(records[-1].get("env_steps") or 0) if records else 0


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
