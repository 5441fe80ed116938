"""A run as its files tell it, whole or cut short: its returns put together."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.metrics import iter_metrics, read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import RunStatus, read_status
from muxrl.orchestrator.storage.versions import versions_used

Floats = NDArray[np.float64]
_MAX_POINTS = 5_000
"""Of a training curve: more than a picture can show."""
AgentReturns = Mapping[str, Sequence[float | None]]
"""For each agent, one return for each episode; None where it was not in it."""
Metrics = Mapping[str, AgentReturns]
"""By metric the same, with `COMMON` in an agent's place where it is of the whole episode."""


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
    """By who was replaced, see `muxrl.orchestrator.records.conditions`: a server's id where its
    agents acted at random; None: all acted as learned."""
    time_s: float = math.nan
    """Seconds of training before it; NaN where it was not recorded."""
    metrics: Mapping[str | None, Metrics] = field(default_factory=dict)
    """As `returns`; empty in runs that were made before there were metrics."""
    sides: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By server whose agents were found to play against each other: side to agents."""

    def returns_of(self, agents: Sequence[str], replaced: str | None) -> Floats | None:
        """For each episode, the mean return over `agents`; None if that was not measured.

        `replaced` is the condition's key.

        An agent that was not in an episode does not count there; an episode that had none of
        them is NaN, so that all conditions keep their places, by which they are paired. None, too,
        if no episode had any.
        """
        returns = returns_by_episode(self.returns.get(replaced, {}), agents)
        return returns if np.isfinite(returns).any() else None


@dataclass(frozen=True)
class TrainingCurve:
    """Returns while training, exploration included; or another metric."""

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
    num_bad_episodes: int = 0
    """Training episodes that ended at a value that a server refused."""
    num_random_episodes: Mapping[str, int] = field(default_factory=dict)
    """By server, training episodes in which its agents acted at random, since it was lost."""
    weights_seq_no: Mapping[str, int] = field(default_factory=dict)
    """By server, the last version of its weights, 0 before any update; unless it is unknown."""
    metric_training: Mapping[tuple[str, str | None], TrainingCurve] = field(default_factory=dict)
    """By metric, and server or None: of the whole episode. None of those is empty."""
    declared_metrics: tuple[str, ...] = ()
    """Those that the config asks for."""
    is_external: bool = False
    """Whether somebody else's simulation played, on seeds that it chose."""
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of the software that made it, by name, the newest first."""

    @property
    def metric_names(self) -> set[str]:
        """The metrics of which anything was recorded."""
        evaluated = (metrics for point in self.points for metrics in point.metrics.values())
        return {name for metrics in evaluated for name in metrics}.union(
            name for name, _ in self.metric_training
        )

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
        joint = _Joint.read(directory.metrics / "joint.jsonl", servers)
        evaluations = read_metrics(directory.metrics / "evaluation.jsonl")
        own = {s: _Iterations.read(directory.metrics / f"{s}.jsonl") for s in servers}
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
                # The joint records count raw rewards, as evaluations do.
                s: (joint.curves[s] if joint.has_returns(s) else own[s].curve).finished()
                for s in servers
            },
            env_steps={s: own[s].env_steps or joint.env_steps for s in servers},
            status=read_status(directory),
            resumed_at=tuple(joint.resumed_at),
            restarted_at={name: tuple(at) for name, at in joint.restarted_at.items()},
            num_lost_episodes=joint.num_lost_episodes,
            num_bad_episodes=joint.num_bad_episodes,
            num_random_episodes=joint.num_random_episodes,
            weights_seq_no={
                s: max(known)
                for s in servers
                if (known := own[s].weights_seq_nos | joint.weights_seq_nos.get(s, set()))
            },
            metric_training={key: curve.finished() for key, curve in joint.metrics.items()},
            declared_metrics=tuple(plan.get("metrics", ())),
            is_external=bool(plan.get("is_external", False)),
            versions=versions_used(path),
        )


class _GrowingCurve:
    """A training curve that is read record by record, 16 bytes each."""

    def __init__(self) -> None:
        self._env_steps = array("d")
        self._returns = array("d")

    def __len__(self) -> int:
        return len(self._env_steps)

    def add(self, env_steps: float, value: float) -> None:
        while self._env_steps and self._env_steps[-1] >= env_steps:  # resumed from before these
            self._env_steps.pop()
            self._returns.pop()
        self._env_steps.append(env_steps)
        self._returns.append(value)

    def finished(self) -> TrainingCurve:
        """Returns its points, of many only some at equal distances, and the last."""
        every = -(-len(self) // _MAX_POINTS) or 1
        at = np.arange(len(self))[::-1][::every][::-1]
        return TrainingCurve(np.array(self._env_steps)[at], np.array(self._returns)[at])


class _Joint:
    """What a report needs of a run's joint records."""

    def __init__(self, servers: Mapping[str, PlannedServer]) -> None:
        self.curves = {server_id: _GrowingCurve() for server_id in servers}
        self.env_steps = 0
        self.resumed_at: list[int] = []
        self.restarted_at: dict[str, list[int]] = {}
        self.num_lost_episodes = self.num_bad_episodes = 0
        self.num_random_episodes: Mapping[str, int] = {}
        self.metrics: dict[tuple[str, str | None], _GrowingCurve] = {}
        self.weights_seq_nos: dict[str, set[int]] = {}
        """By server, the last one."""
        self._agents = {server_id: server.agents for server_id, server in servers.items()}

    @classmethod
    def read(cls, path: Path, servers: Mapping[str, PlannedServer]) -> _Joint:
        joint = cls(servers)
        for record in iter_metrics(path):
            joint._add(record)
        return joint

    def has_returns(self, server_id: str) -> bool:
        return len(self.curves[server_id]) > 0

    def _add(self, record: Mapping[str, Any]) -> None:
        self.env_steps = int(record.get("env_steps") or 0)
        self.num_lost_episodes = int(record.get("num_lost_episodes", 0))
        self.num_bad_episodes = int(record.get("num_bad_episodes", 0))
        self.num_random_episodes = record.get("num_random_episodes", {})
        if "resumed_from" in record:
            self.resumed_at.append(record["resumed_from"])
        for name in record.get("restarted", ()):
            self.restarted_at.setdefault(name, []).append(int(record["env_steps"]))
        for server_id, of_server in (record.get("servers") or {}).items():
            if "weights_seq_no" in of_server:
                self.weights_seq_nos[server_id] = {of_server["weights_seq_no"]}
        by_agent = record.get("episode_return_mean") or {}
        for server_id, agents in self._agents.items():
            if (value := _mean(by_agent, agents)) is not None:
                self.curves[server_id].add(record["env_steps"], value)
        for name, values in (record.get("metrics") or {}).items():
            for who, members in ((None, (COMMON,)), *self._agents.items()):
                if (value := _mean(values, members)) is not None:
                    curve = self.metrics.setdefault((name, who), _GrowingCurve())
                    curve.add(record["env_steps"], value)


def _mean(by_agent: Mapping[str, float | None], agents: Sequence[str]) -> float | None:
    known = [value for a in agents if (value := by_agent.get(a)) is not None]
    return sum(known) / len(known) if known else None


class _Iterations:
    """What a report needs of one server's records."""

    def __init__(self) -> None:
        self.curve = _GrowingCurve()
        self.env_steps = 0
        self.weights_seq_nos: set[int] = set()
        """The last one."""

    @classmethod
    def read(cls, path: Path) -> _Iterations:
        iterations = cls()
        for record in iter_metrics(path):
            iterations.env_steps = int(record.get("env_steps") or 0)
            if "weights_seq_no" in record:
                iterations.weights_seq_nos = {record["weights_seq_no"]}
            if record.get("episode_return_mean") is not None:
                iterations.curve.add(record["env_steps"], record["episode_return_mean"])
        return iterations


def _points(evaluations: Iterable[Mapping[str, Any]]) -> tuple[EvaluationPoint, ...]:
    """Gather the conditions of each evaluation.

    A condition seen again begins the next evaluation, so that a point holds together even where
    training went on meanwhile and its records differ by a few env steps. Two evaluations at the
    same env step (the last of training and the final one) are one; the later counts.
    """
    gathered: list[tuple[int, float, dict[str | None, Mapping[str, Any]]]] = []
    for record in evaluations:
        replaced = record["replaced"]
        if not gathered or replaced in gathered[-1][2]:
            gathered.append((int(record["env_steps"]), float(record.get("time_s", math.nan)), {}))
        gathered[-1][2][replaced] = record
    merged: dict[int, dict[str | None, Mapping[str, Any]]] = {}
    times: dict[int, float] = {}
    for env_steps, time_s, records in gathered:
        merged.setdefault(env_steps, {}).update(records)
        times.setdefault(env_steps, time_s)
    return tuple(
        EvaluationPoint(
            n,
            {replaced: record["returns"] for replaced, record in merged[n].items()},
            times[n],
            {replaced: record.get("metrics", {}) for replaced, record in merged[n].items()},
            _sides(merged[n].values()),
        )
        for n in sorted(merged)
    )


def _sides(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Returns by server the sides that were replaced one at a time, and their agents."""
    sides: dict[str, dict[str, tuple[str, ...]]] = {}
    for condition in map(Condition.of_record, records):
        if condition.server_id is not None and condition.side:
            sides.setdefault(condition.server_id, {})[condition.side] = condition.agents
    return sides
