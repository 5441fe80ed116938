"""Reads a run back from its files, even if it was cut short, and puts its curves together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from muxrl.orchestrator.config.experiment_settings import conflicts, experiment_settings
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.records.conditions import seen_by
from muxrl.orchestrator.records.evaluations import (
    RETURN,
    EvaluationPoint,
    EvaluationSeries,
    frame_of,
)
from muxrl.orchestrator.records.metrics import iter_rows
from muxrl.orchestrator.records.plan import Plan
from muxrl.orchestrator.records.rows import EvaluationRow, IterationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import RunStatus, read_status
from muxrl.orchestrator.records.series import Floats, MetricCurves, TrainingSeries
from muxrl.orchestrator.records.thinned import Point, Thinned
from muxrl.orchestrator.storage.versions import versions_used

if TYPE_CHECKING:
    from pandas import DataFrame

    from muxrl.orchestrator.config import ExperimentConfig

_MAX_POINTS = 4_998
"""Points of a training curve, without the newest one: more than a picture can show."""


@dataclass(frozen=True)
class TrainingCurve:
    """Returns during training, exploration included; or another metric."""

    env_steps: Floats
    returns: Floats
    """At each number of env steps: the mean over recent episodes and the server's agents."""

    @classmethod
    def of(cls, points: Sequence[Point]) -> TrainingCurve:
        """Returns the curve of points ``(env_steps, value)``."""
        return cls(*np.array(points, np.float64).reshape(-1, 2).T)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun(Plan):
    """All that reports need of one run: its plan and its results. Compared by identity."""

    path: Path
    """The run's directory."""
    evaluations: DataFrame
    """All evaluations as one wide frame."""
    points: tuple[EvaluationPoint, ...]
    """Each evaluation without its numbers, in order of env steps, which all differ."""
    should_explore: bool | None
    """Whether evaluated policies sampled their actions; None: nothing was evaluated."""
    training: Mapping[str, TrainingCurve]
    """By server: returns during training; the curve is empty if no episode ended."""
    env_steps: Mapping[str, int]
    """By server: the env steps of training that it has taken part in."""
    status: RunStatus | None = None
    """How the run stands or ended; None: the run has no ``status.json``."""
    resumed_at: tuple[int, ...] = ()
    """Env steps of the checkpoints from which the run was resumed."""
    restarted_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By process: the env steps at which it was lost and started again."""
    num_lost_episodes: int = 0
    """Training episodes that were closed early because a process was lost."""
    num_bad_episodes: int = 0
    """Training episodes that ended because a server refused a value."""
    num_random_episodes: Mapping[str, int] = field(default_factory=dict)
    """By server: training episodes in which its agents acted at random, because it was lost."""
    num_logged_actions: Mapping[str, int] = field(default_factory=dict)
    """By server, if any: actions in training that simulations chose themselves."""
    weights_seq_no: Mapping[str, int] = field(default_factory=dict)
    """By server: the last version of its weights, 0 before any update; left out if unknown."""
    metric_training: Mapping[tuple[str, str | None], TrainingCurve] = field(default_factory=dict)
    """By metric and server (None: of the whole episode); no curve is empty."""
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By name: versions of the software that made the run, newest first."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.name

    @property
    def learns(self) -> bool:
        """Whether any server of the run learns."""
        return any(server.learns for server in self.servers.values())

    @cached_property
    def config(self) -> ExperimentConfig:
        """The config with which the run was started.

        Raises:
            FileNotFoundError: no config was saved: the run never began.
            ConfigError: the config is of another version of muxrl.
        """
        return RunDirectory(self.path).read_config()

    @cached_property
    def changed_settings(self) -> Mapping[str, str]:
        """Settings that changed during the run, see `RunDirectory.changed_settings`; {} if a config
        cannot be read."""
        with contextlib.suppress(FileNotFoundError, ConfigError):
            return RunDirectory(self.path).changed_settings()
        return {}

    @property
    def changes_as_comments(self) -> str:
        """`changed_settings` as comment lines, to be put before the config."""
        return "".join(f"# {key} was {value}\n" for key, value in self.changed_settings.items())

    def differences(self, other: RecordedRun, *keys: str) -> list[str]:
        """Returns in which settings two runs differ, or that they were evaluated by two rules.

        Args:
            other: the other run; if a config cannot be read, settings are not compared.
            keys: what the names of compared settings begin with, see `experiment_settings`.
        """
        rules = [run.should_explore for run in (self, other)]
        if None not in rules and rules[0] != rules[1]:
            names = ["sampled" if one else "greedy" for one in rules]
            return [f"evaluated actions are {names[0]} against {names[1]}"]
        with contextlib.suppress(FileNotFoundError, ConfigError):
            ours, theirs = (
                {k: v for k, v in experiment_settings(run.config).items() if k.startswith(keys)}
                for run in (self, other)
            )
            return conflicts(ours, theirs)
        return []

    @property
    def metric_names(self) -> set[str]:
        """The names of all metrics that were recorded, in evaluations or in training."""
        names = [*self.evaluations.columns, *self.metric_training]
        return {name for name, _ in names} - {RETURN}

    def seen_by(self, server_id: str) -> RecordedRun:
        """Returns the run as if a server, maybe a shadow, had acted; see `conditions.seen_by`."""
        server = self.servers[server_id]
        if not (server.shadow or server.replaced_by):
            return self
        points, parts = [], {}
        for point in self.points:
            names = seen_by(server_id, point.num_episodes)
            if names:
                num = {names[who]: num for who, num in point.num_episodes.items() if who in names}
                points.append(replace(point, num_episodes=num))
            for who, name in names.items():
                parts[point.env_steps, name] = self.evaluations.loc[(point.env_steps, who)]
        return replace(self, points=tuple(points), evaluations=frame_of(parts, self.evaluations))

    def has_updates(self, server_id: str) -> bool:
        """Whether a server made an update, or may have; else it acts with its first weights."""
        return self.weights_seq_no.get(server_id, 1) > 0

    def is_played_by_others(self, server_id: str) -> bool:
        """Whether simulations chose actions of a server's agents themselves.

        What counts is the last evaluation if the server learns, else training.
        """
        server = self.servers[server_id]
        if not server.learns:
            return server_id in self.num_logged_actions
        return any(not p.logged_agents.isdisjoint(server.agents) for p in self.points[-1:])

    @classmethod
    def read(cls, path: Path) -> RecordedRun:
        """Reads a run from its directory; absent files of metrics count as empty.

        Raises:
            NotARunDirectory: the folder is no run's, or its ``plan.json`` is absent or broken.
            MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        """
        directory = RunDirectory.open(path)
        plan = directory.read_plan()
        agents = {server_id: server.agents for server_id, server in plan.servers.items()}
        acting = {server_id: server.agents for server_id, server in plan.acting.items()}
        metrics = MetricCurves(acting, most_points=_MAX_POINTS)
        training = TrainingSeries(agents, metrics, most_points=_MAX_POINTS)
        last = JointRow(env_steps=0)
        weights_seq_no: dict[str, int] = {}
        of_server: dict[str, int] = {}
        logged: dict[str, int] = {}
        resumed_at: list[int] = []
        restarted_at: dict[str, list[int]] = {}
        for last in iter_rows(directory.metrics / "joint.jsonl", JointRow):
            training.add(last)
            if last.resumed_from is not None:
                resumed_at.append(last.resumed_from)
            for name in last.restarted:
                restarted_at.setdefault(name, []).append(last.env_steps)
            for server_id, state in last.servers.items():
                if state.weights_seq_no is not None:
                    weights_seq_no[server_id] = state.weights_seq_no
                if state.num_env_steps is not None:
                    of_server[server_id] = state.num_env_steps
                is_shadow = server_id in plan.servers and plan.servers[server_id].shadow
                if state.num_logged_actions and not is_shadow:
                    logged[server_id] = state.num_logged_actions
        evaluations = EvaluationSeries(is_external=plan.is_external)
        for row in iter_rows(directory.metrics / "evaluation.jsonl", EvaluationRow):
            evaluations.add(row)
        curves = {}
        env_steps = {s: of_server.get(s, last.env_steps) for s in plan.servers}
        for server_id in plan.servers:
            own, newest = Thinned(most=_MAX_POINTS), None
            for one in iter_rows(directory.metrics / f"{server_id}.jsonl", IterationRow):
                if server_id not in of_server:  # joint rows of the first runs lack it
                    env_steps[server_id] = one.env_steps or last.env_steps
                if one.weights_seq_no is not None:
                    newest = one.weights_seq_no
                if one.episode_return_mean is not None and not plan.servers[server_id].shadow:
                    own.add((one.env_steps, one.episode_return_mean))
            if newest is not None:
                weights_seq_no[server_id] = max(newest, weights_seq_no.get(server_id, newest))
            # The joint rows count raw rewards, as evaluations do.
            curves[server_id] = TrainingCurve.of(training.returns[server_id].points or own.points)
        return cls(
            **vars(plan),
            path=directory.path.resolve(),
            evaluations=evaluations.frame(),
            points=evaluations.points,
            should_explore=evaluations.should_explore,
            training=curves,
            env_steps=env_steps,
            status=read_status(directory),
            resumed_at=tuple(resumed_at),
            restarted_at={name: tuple(at) for name, at in restarted_at.items()},
            num_lost_episodes=last.num_lost_episodes,
            num_bad_episodes=last.num_bad_episodes,
            num_random_episodes=last.num_random_episodes,
            num_logged_actions=logged,
            weights_seq_no={s: no for s, no in weights_seq_no.items() if s in plan.servers},
            metric_training={
                key: TrainingCurve.of(curve.points) for key, curve in metrics.curves.items()
            },
            versions=versions_used(path),
        )
