"""What the page shows of one run, finished or not, as plain data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config.load import from_yaml
from muxrl.orchestrator.errors import ConfigError, NotARunDirectory
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.watch.activity import STATES, Activities
from muxrl.orchestrator.watch.metrics import MetricCurves
from muxrl.orchestrator.watch.returns import EvaluatedReturns, TrainingReturns, roles_of
from muxrl.orchestrator.watch.tail import Record, Tail
from muxrl.orchestrator.watch.thinned import Point, Thinned

_INTERVALS_S = 0.5
"""Spent on intervals each time: a page comes up at once, and its bands soon."""
_LOG_BYTES = 6_000
_LOG_LINES = 15
_MOST_LOGS = 32
_MOST_MARKS = 100
_MOST_LATENCIES = 300


class RunView:
    """Reads a run's directory again and again; it keeps what is drawn, not what was read.

    Args:
        path: the run's directory.

    Raises:
        NotARunDirectory: it is none, or its ``plan.json`` is absent or broken.
    """

    def __init__(self, path: Path) -> None:
        self._folder = RunDirectory.open(path)
        plan = self._folder.read_plan()
        try:
            self._servers = {
                server_id: {
                    "id": server_id,
                    "algorithm": str(server["algorithm"]),
                    "learns": bool(server.get("learns", True)),
                    "agents": list(map(str, server["agents"])),
                }
                for server_id, server in plan["servers"].items()
            }
            self._roles = roles_of(plan)
        except (KeyError, TypeError, AttributeError) as error:
            raise NotARunDirectory(
                path, f"a server in its plan.json has no algorithm or agents ({error!r})"
            ) from error
        self._about = {
            "assignment": str(plan.get("assignment", "")),
            "seed": plan.get("seed"),
            **_read_about(self._folder.path / "config.yaml"),
        }
        metrics = self._folder.metrics
        agents = {server_id: server["agents"] for server_id, server in self._servers.items()}
        self._metrics = MetricCurves(agents)
        self._lags: dict[str, Thinned] = {}
        self._own_returns: dict[str, Thinned] = {}
        self._tails = [
            Tail(metrics / "joint.jsonl", self._begin_joint),
            Tail(metrics / "evaluation.jsonl", self._begin_evaluations),
            *(Tail(metrics / f"{s}.jsonl", self._begin_server(s)) for s in self._servers),
        ]
        self._logs: dict[Path, tuple[tuple[float, int], list[str]]] = {}

    # --- what is read -------------------------------------------------------------------

    def _begin_joint(self) -> Callable[[Record], None]:
        self._training = TrainingReturns(self._roles)
        self._metrics.begin_training()
        self._activities = Activities(list(self._servers))
        self._speed = Thinned()
        self._latencies = {s: Thinned(_highest, _MOST_LATENCIES) for s in self._servers}
        self._marks: list[dict[str, Any]] = []
        self._latest: Record = {}
        return self._add_joint

    def _add_joint(self, record: Record) -> None:
        self._training.add(record)
        self._metrics.add_training(record)
        if "time_s" in record:
            self._activities.add(record)
            self._speed.add((round(record["time_s"], 2), round(record["env_steps_per_s"], 2)))
            for server_id, now in (record.get("servers") or {}).items():
                if server_id in self._latencies and now.get("exchange_p50_s") is not None:
                    quantiles = now["exchange_p50_s"], now["exchange_p99_s"]
                    self._latencies[server_id].add((round(record["time_s"], 2), *quantiles))
        what = [f"{name} started again" for name in record.get("restarted", ())]
        if "resumed_from" in record:
            what.append("resumed")
        if what:
            place = {"env_steps": record["env_steps"], "time_s": record["time_s"]}
            self._marks = [*self._marks, {**place, "what": ", ".join(what)}][-_MOST_MARKS:]
        self._latest = record

    def _begin_evaluations(self) -> Callable[[Record], None]:
        self._evaluated = EvaluatedReturns(self._roles)
        self._metrics.begin_evaluations()

        def add(record: Record) -> None:
            self._evaluated.add(record)
            self._metrics.add_evaluation(record)

        return add

    def _begin_server(self, server_id: str) -> Callable[[], Callable[[Record], None]]:
        def begin() -> Callable[[Record], None]:
            lags = self._lags[server_id] = Thinned(_highest)
            returns = self._own_returns[server_id] = Thinned()

            def add(record: Record) -> None:
                if record.get("policy_lag_mean") is not None:
                    lag = record["policy_lag_mean"], record["policy_lag_max"]
                    lags.add((record["env_steps"], *lag))
                if record.get("episode_return_mean") is not None:
                    returns.add((record["env_steps"], record["episode_return_mean"]))

            return add

        return begin

    # --- what is shown ------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """Returns the run as it stands now; of a long one at first only its beginning.

        Raises:
            NotARunDirectory: ``status.json`` is broken.
            OSError: a file cannot be read.
        """
        is_read = not any([tail.read() for tail in self._tails])  # noqa: C419, all of them
        until_s = time.monotonic() + _INTERVALS_S
        status = read_status(self._folder)
        latest = dict(self._latest)
        if status and status.has_ended:
            latest["env_steps"] = status.env_steps
        num_restarts = status.num_restarts if status else {}
        servers = [
            {**self._server(server_id, until_s), "num_restarts": num_restarts.get(server_id, 0)}
            for server_id in self._servers
        ]
        return {
            "kind": "run",
            "name": self._folder.path.resolve().name,
            "is_whole": is_read and not any(r["has_more"] for s in servers for r in s["roles"]),
            "problems": [tail.problem for tail in self._tails if tail.problem],
            **self._about,
            "status": {**asdict(status), "state": status.state_now} if status else None,
            **{
                key: latest.get(key)
                for key in ("env_steps", "episodes", "time_s", "env_steps_per_s")
            },
            "num_lost_episodes": latest.get("num_lost_episodes", 0),
            "num_random_episodes": latest.get("num_random_episodes", {}),
            "marks": self._marks,
            "speed": self._speed.points,
            "states": STATES,
            "servers": servers,
            "metrics": self._metrics.shown(),
            "logs": self._read_logs(),
        }

    def _server(self, server_id: str, until_s: float) -> dict[str, Any]:
        roles = [role for role in self._roles if role.server_id == server_id]
        # Of a simulation that is not the run's own, only servers know returns.
        own = self._own_returns[server_id].points if len(roles) == 1 else []
        return {
            **self._servers[server_id],
            "strip": self._activities.stretches(server_id),
            "num_refused": self._activities.num_refused(server_id),
            "lag": self._lags[server_id].points,
            "latency": self._latencies[server_id].points,
            "roles": [
                {
                    "name": role.name,
                    "agents": role.agents,
                    "training": self._training.of(role) or own,
                    **self._evaluated.shown(role, until_s),
                }
                for role in roles
            ],
        }

    def _read_logs(self) -> list[dict[str, Any]]:
        """Returns the last lines of the logs that have any: the servers' first, then by name."""
        servers = [self._folder.log(server_id) for server_id in self._servers]
        others = sorted(p.absolute() for p in self._folder.logs.glob("*.log"))
        paths = dict.fromkeys([*servers, *others])
        logs = [{"process": path.stem, "lines": self._last_lines(path)} for path in paths]
        return [log for log in logs if log["lines"]][:_MOST_LOGS]

    def _last_lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                version = facts.st_mtime, facts.st_size
                known, lines = self._logs.get(path, (None, []))
                if version != known:
                    file.seek(max(0, facts.st_size - _LOG_BYTES))
                    text = file.read(_LOG_BYTES).decode(errors="replace")
                    if facts.st_size > _LOG_BYTES:
                        text = text.partition("\n")[2]
                    lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
                    self._logs[path] = version, lines
                return lines
        except FileNotFoundError:
            return []


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
