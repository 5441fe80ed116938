"""What the page shows of one run, finished or not, as plain data."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config.load import from_yaml
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.records.plan import roles_of
from muxrl.orchestrator.records.rows import EvaluationRow, IterationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.records.series import MetricCurves, TrainingSeries, mean_of_episodes
from muxrl.orchestrator.records.thinned import MOST_POINTS, Point, Thinned
from muxrl.orchestrator.watch.activity import STATES, Activities
from muxrl.orchestrator.watch.returns import MOST_EVALUATIONS, EvaluatedReturns
from muxrl.orchestrator.watch.tail import Tail

_LOG_BYTES = 6_000
_LOG_LINES = 15
_MOST_LOGS = 32
_MOST_MARKS = 100
_MOST_LATENCIES = 300
_MOST_CURVES = 40
"""Of training, and as many evaluated; the files have all metrics."""


class RunView:
    """Reads a run's directory again and again; it keeps what is drawn, not what was read.

    Args:
        path: the run's directory.

    Raises:
        NotARunDirectory: it is none, or its ``plan.json`` is absent or broken.
    """

    def __init__(self, path: Path) -> None:
        self._folder = RunDirectory.open(path)
        self._plan = self._folder.read_plan()
        self._roles = roles_of(self._plan)
        self._about = {
            "assignment": self._plan.assignment,
            "seed": self._plan.seed,
            **_read_about(self._folder.path / "config.yaml"),
        }
        self._agents = {s: server.agents for s, server in self._plan.servers.items()}
        metrics = self._folder.metrics
        self._lags: dict[str, Thinned] = {}
        self._own_returns: dict[str, Thinned] = {}
        self._tails = [
            Tail(metrics / "joint.jsonl", self._begin_joint, JointRow),
            Tail(metrics / "evaluation.jsonl", self._begin_evaluations, EvaluationRow),
            *(
                Tail(metrics / f"{s}.jsonl", functools.partial(self._begin_server, s), IterationRow)
                for s in self._plan.servers
            ),
        ]

    # --- what is read -------------------------------------------------------------------

    def _begin_joint(self) -> Callable[[JointRow], None]:
        self._trained_metrics = MetricCurves(self._agents, _MOST_CURVES, most_points=MOST_POINTS)
        groups = {role.key: role.agents for role in self._roles}
        self._training = TrainingSeries(groups, self._trained_metrics, most_points=MOST_POINTS)
        self._activities = Activities(list(self._agents))
        self._speed = Thinned()
        self._latencies = {s: Thinned(_highest, _MOST_LATENCIES) for s in self._agents}
        self._marks: list[dict[str, Any]] = []
        self._latest: JointRow | None = None
        return self._add_joint

    def _add_joint(self, row: JointRow) -> None:
        self._training.add(row)
        self._activities.add(row)
        if row.time_s is not None and row.env_steps_per_s is not None:
            time_s = round(row.time_s, 2)
            self._speed.add((time_s, round(row.env_steps_per_s, 2)))
            for server_id, latencies in self._latencies.items():
                now = row.servers.get(server_id)
                if now is not None and now.exchange_p50_s is not None:
                    latencies.add((time_s, now.exchange_p50_s, now.exchange_p99_s))
        what = [f"{name} started again" for name in row.restarted]
        if row.resumed_from is not None:
            what.append("resumed")
        if what:
            place = {"env_steps": row.env_steps, "time_s": row.time_s}
            self._marks = [*self._marks, {**place, "what": ", ".join(what)}][-_MOST_MARKS:]
        self._latest = row

    def _begin_evaluations(self) -> Callable[[EvaluationRow], None]:
        self._evaluated = EvaluatedReturns(self._roles, is_external=self._plan.is_external)
        self._evaluated_metrics = MetricCurves(
            self._agents, _MOST_CURVES, most_points=MOST_EVALUATIONS
        )
        return self._add_evaluation

    def _add_evaluation(self, row: EvaluationRow) -> None:
        self._evaluated.add(row)
        if row.replaced is None:
            self._evaluated_metrics.add(row.env_steps, row.metrics, mean_of_episodes)

    def _begin_server(self, server_id: str) -> Callable[[IterationRow], None]:
        lags = self._lags[server_id] = Thinned(_highest)
        returns = self._own_returns[server_id] = Thinned()

        def add(row: IterationRow) -> None:
            if row.policy_lag_mean is not None:
                lags.add((row.env_steps, row.policy_lag_mean, row.policy_lag_max))
            if row.episode_return_mean is not None:
                returns.add((row.env_steps, row.episode_return_mean))

        return add

    # --- what is shown ------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """Returns the run as it stands now; of a long one at first only its beginning.

        Raises:
            NotARunDirectory: ``status.json`` is broken.
            OSError: a file cannot be read.
        """
        is_read = not any([tail.read() for tail in self._tails])  # noqa: C419, all of them
        status = read_status(self._folder)
        latest = self._latest
        env_steps = latest and latest.env_steps
        num_restarts = status.num_restarts if status else {}
        servers = [
            {**self._server(server_id), "num_restarts": num_restarts.get(server_id, 0)}
            for server_id in self._agents
        ]
        return {
            "kind": "run",
            "name": self._folder.path.resolve().name,
            "is_whole": is_read,
            "problems": [tail.problem for tail in self._tails if tail.problem],
            **self._about,
            "status": {**asdict(status), "state": status.state_now} if status else None,
            "env_steps": status.env_steps if status and status.has_ended else env_steps,
            "episodes": latest and latest.episodes,
            "time_s": latest and latest.time_s,
            "env_steps_per_s": latest and latest.env_steps_per_s,
            "num_lost_episodes": latest.num_lost_episodes if latest else 0,
            "num_random_episodes": latest.num_random_episodes if latest else {},
            "marks": self._marks,
            "speed": self._speed.points,
            "states": STATES,
            "servers": servers,
            "metrics": self._metrics(),
            "logs": self._read_logs(),
        }

    def _server(self, server_id: str) -> dict[str, Any]:
        roles = [role for role in self._roles if role.server_id == server_id]
        # Of a simulation that is not the run's own, only servers know returns.
        own = self._own_returns[server_id].points if len(roles) == 1 else []
        server = self._plan.servers[server_id]
        state = self._latest.servers.get(server_id) if self._latest else None
        return {
            "id": server_id,
            "algorithm": server.algorithm,
            "learns": server.learns,
            "is_played_by_others": bool(state and state.num_logged_actions),
            "agents": server.agents,
            "strip": self._activities.stretches(server_id),
            "num_refused": self._activities.num_refused(server_id),
            "lag": self._lags[server_id].points,
            "latency": self._latencies[server_id].points,
            "roles": [
                {
                    "name": role.name,
                    "agents": role.agents,
                    "training": self._training.returns[role.key].points or own,
                    **self._evaluated.shown(role),
                }
                for role in roles
            ],
        }

    def _metrics(self) -> list[dict[str, Any]]:
        """Returns for each metric points ``(env_steps, mean)`` for each server that has it, and for
        whole episodes."""
        trained, evaluated = self._trained_metrics.curves, self._evaluated_metrics.curves
        none = Thinned()
        return [
            {
                "name": name,
                "of": [
                    {
                        "server": server_id,
                        "training": trained.get((name, server_id), none).points,
                        "evaluated": evaluated.get((name, server_id), none).points,
                    }
                    for server_id in (None, *self._agents)
                    if (name, server_id) in trained or (name, server_id) in evaluated
                ],
            }
            for name in sorted({name for name, _ in (*trained, *evaluated)})
        ]

    def _read_logs(self) -> list[dict[str, Any]]:
        """Returns the last lines of the logs that have any: the servers' first, then by name."""
        servers = [self._folder.log(server_id) for server_id in self._agents]
        others = sorted(p.absolute() for p in self._folder.logs.glob("*.log"))
        paths = dict.fromkeys([*servers, *others])
        logs = [{"process": path.stem, "lines": _last_lines(path)} for path in paths]
        return [log for log in logs if log["lines"]][:_MOST_LOGS]


def _last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    whole = text if size <= _LOG_BYTES else text.partition("\n")[2]
    return [line for line in whole.splitlines() if line.strip()][-_LOG_LINES:]


def _highest(first: Point, second: Point) -> Point:
    """Of two points the later mean or median, and the higher maximum or 99th percentile."""
    return first[0], second[1], max(first[2], second[2])


def _read_about(config_yaml: Path) -> dict[str, str]:
    """Returns what the run plays and when it ends, nothing where another version wrote that."""
    try:
        config = from_yaml(config_yaml.read_text(encoding="utf-8"), str(config_yaml))
    except (OSError, ConfigError):
        return {}
    return {"simulation": config.simulation.env, "stop": StopConditions(config.stop).text}
