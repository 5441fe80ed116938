"""Turns the files of one run, finished or not, into plain data for the page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.measure.against_random import AgainstRandom, against_random
from muxrl.orchestrator.measure.judged import NO_UPDATE, PLAYS_ITSELF, SIDE_BY_SIDE
from muxrl.orchestrator.measure.sides import play_against_each_other
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.measure.subjects import Measured, Subject
from muxrl.orchestrator.records.conditions import Condition, seen_by, untrained
from muxrl.orchestrator.records.evaluations import AS_LEARNED, EvaluationPoint, EvaluationSeries
from muxrl.orchestrator.records.plan import Plan, Role, roles_of
from muxrl.orchestrator.records.rows import EvaluationRow, IterationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.records.series import MetricCurves, TrainingSeries, mean_of_episodes
from muxrl.orchestrator.records.thinned import MOST_POINTS, Point, Thinned
from muxrl.orchestrator.watch.activity import STATES, Activities
from muxrl.orchestrator.watch.tail import Tail

_LOG_BYTES = 6_000
_LOG_LINES = 15
_MOST_LOGS = 32
_MOST_MARKS = 100
_MOST_LATENCIES = 300
_MOST_CURVES = 40
"""Curves of metrics in training, and as many of evaluations; the files have all metrics."""
_MOST_LEARNED = 12
"""Shown numbers of a server's learner: the first that change; report and files have all."""
_MOST_KEPT = 40
"""Kept numbers of a server's learner, whether they change or not."""
_MOST_LEARNED_POINTS = 150
_MOST_EVALUATIONS = 150


class RunView:
    """Reads a run's directory again and again; keeps what is drawn, but not all rows.

    Args:
        path: the run's directory.

    Raises:
        NotARunDirectory: the folder is not a run's, or its ``plan.json`` is absent or broken.
    """

    def __init__(self, path: Path) -> None:
        self._folder = RunDirectory.open(path)
        self._plan = self._folder.read_plan()
        self._roles = roles_of(self._plan)
        self._about = {
            "assignment": self._plan.assignment,
            "seed": self._plan.seed,
            **_read_about(self._folder),
        }
        self._agents = {s: server.agents for s, server in self._plan.servers.items()}
        metrics = self._folder.metrics
        joint = partial(_Joint, self._plan)
        evaluated = partial(Evaluated, self._plan)
        self._joint = Tail(metrics / "joint.jsonl", joint, JointRow)
        self._evaluated = Tail(metrics / "evaluation.jsonl", evaluated, EvaluationRow)
        self._servers = {
            s: Tail(metrics / f"{s}.jsonl", _Iterations, IterationRow) for s in self._plan.servers
        }

    def read(self) -> dict[str, Any]:
        """Returns the run as it stands now; of a long run at first only its beginning.

        Raises:
            NotARunDirectory: ``status.json`` is broken.
            OSError: a file cannot be read.
        """
        tails: list[Tail[Any]] = [self._joint, self._evaluated, *self._servers.values()]
        is_read = not any([tail.read() for tail in tails])  # noqa: C419, all of them
        status = read_status(self._folder)
        joint = self._joint.rows
        latest = joint.latest
        env_steps = latest and latest.env_steps
        num_restarts = status.num_restarts if status else {}
        return {
            "kind": "run",
            "name": self._folder.path.resolve().name,
            "is_whole": is_read,
            "problems": [tail.problem for tail in tails if tail.problem],
            **self._about,
            "status": {**asdict(status), "state": status.state_now} if status else None,
            "env_steps": status.env_steps if status and status.has_ended else env_steps,
            "episodes": latest and latest.episodes,
            "time_s": latest and latest.time_s,
            "env_steps_per_s": latest and latest.env_steps_per_s,
            "num_lost_episodes": latest.num_lost_episodes if latest else 0,
            "num_random_episodes": latest.num_random_episodes if latest else {},
            "marks": joint.marks,
            "speed": joint.speed.points,
            "states": STATES,
            "servers": [self._server(s, num_restarts.get(s, 0)) for s in self._agents],
            "metrics": self._metrics(),
            "logs": self._read_logs(),
        }

    def _server(self, server_id: str, num_restarts: int) -> dict[str, Any]:
        roles = [role for role in self._roles if role.server_id == server_id]
        # With an external simulation, only the servers know returns.
        iterations, joint = self._servers[server_id].rows, self._joint.rows
        own = iterations.returns.points if len(roles) == 1 else []
        server = self._plan.servers[server_id]
        state = joint.latest.servers.get(server_id) if joint.latest else None
        seq_no = max(iterations.weights_seq_no, joint.weights_seq_no.get(server_id, -1))
        return {
            "id": server_id,
            "algorithm": server.algorithm
            + (f", shadow of {server.shadow}" if server.shadow else ""),
            "learns": server.learns,
            "is_played_by_others": bool(state and state.num_logged_actions),
            "agents": server.agents,
            "strip": joint.activities.spans(server_id),
            "num_refused": joint.activities.num_refused(server_id),
            "lag": iterations.lags.points,
            "latency": joint.latencies[server_id].points,
            "learned": iterations.learned,
            "num_restarts": num_restarts,
            "roles": [
                {
                    "name": role.name,
                    "agents": role.agents,
                    "training": joint.training.returns[role.key].points or own,
                    **self._evaluated.rows.shown(role, has_updates=seq_no != 0),
                }
                for role in roles
            ],
        }

    def _metrics(self) -> list[dict[str, Any]]:
        """Returns each metric's points ``(env_steps, mean)``.

        Each server that has the metric has its own points, and so have whole episodes (server
        None).
        """
        trained = self._joint.rows.metrics.curves
        evaluated = self._evaluated.rows.metrics.curves
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
        """Returns the last lines of all logs that are not empty: of servers first, then by name."""
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


class _Joint:
    """Curves and newest values from the rows of the whole run."""

    def __init__(self, plan: Plan) -> None:
        agents = list(plan.servers)
        self.metrics = _metric_curves(plan, MOST_POINTS)
        groups = {role.key: role.agents for role in roles_of(plan)}
        self.training = TrainingSeries(groups, self.metrics, most_points=MOST_POINTS)
        self.activities = Activities(agents)
        self.speed = Thinned()
        self.latencies = {s: Thinned(_highest, _MOST_LATENCIES) for s in agents}
        self.marks: list[dict[str, Any]] = []
        self.latest: JointRow | None = None
        self.weights_seq_no: dict[str, int] = {}

    def add(self, row: JointRow) -> None:
        for server_id, state in row.servers.items():
            if state.weights_seq_no is not None:
                self.weights_seq_no[server_id] = state.weights_seq_no
        self.training.add(row)
        self.activities.add(row)
        if row.time_s is not None and row.env_steps_per_s is not None:
            time_s = round(row.time_s, 2)
            self.speed.add((time_s, round(row.env_steps_per_s, 2)))
            for server_id, latencies in self.latencies.items():
                now = row.servers.get(server_id)
                if now is not None and now.exchange_p50_s is not None:
                    latencies.add((time_s, now.exchange_p50_s, now.exchange_p99_s))
        if row.resumed_from is not None:  # the clock goes on from its time before
            self._mark("resumed", row.resumed_from, self.latest.time_s if self.latest else 0.0)
        if row.restarted:
            what = ", ".join(f"{name} started again" for name in row.restarted)
            self._mark(what, row.env_steps, row.time_s)
        self.latest = row

    def _mark(self, what: str, env_steps: int, time_s: float | None) -> None:
        place = {"env_steps": env_steps, "time_s": time_s, "what": what}
        self.marks = [*self.marks, place][-_MOST_MARKS:]


class Evaluated:
    """Curves and newest values from the rows of evaluations; each condition has a row."""

    def __init__(self, plan: Plan) -> None:
        self.metrics = _metric_curves(plan, _MOST_EVALUATIONS)
        self._servers, self._roles = plan.servers, roles_of(plan)
        self._series = EvaluationSeries(most=1, is_external=plan.is_external)
        self._rows: Mapping[str, EvaluationRow] = {}
        self._has_sides: dict[str, bool] = {}
        """By server that plays itself in the newest evaluation: whether sides were replaced."""

    def add(self, row: EvaluationRow) -> None:
        """Adds a row; one with another `should_explore` drops all earlier rows."""
        if row.replaced is None:
            self.metrics.add(row.env_steps, row.metrics, mean_of_episodes)
        if row.should_explore != self._series.should_explore:
            self._curves = {role: Thinned(most=_MOST_EVALUATIONS) for role in self._roles}
        self._series.add(row)
        (point,), (rows,) = self._series.points, self._series.rows.values()
        server_id = Condition.of_row(row).server_id
        if rows is not self._rows:  # a new evaluation: update all servers
            self._rows, server_id = rows, None
        for acting, server in self._servers.items():
            if server.learns and server_id in (None, acting):
                self._has_sides.pop(acting, None)
                both = [rows[who].returns for who in (acting, AS_LEARNED) if who in rows]
                if acting in point.sides or play_against_each_other(both, server.agents):
                    self._has_sides[acting] = acting in point.sides
        for role, curve in self._curves.items():
            seen, server = rows, self._servers[role.server_id]
            if server.shadow or server.replaced_by:
                names = seen_by(role.server_id, rows)
                seen = {names[who]: one for who, one in rows.items() if who in names}
            elif server_id not in (None, role.server_id):
                continue
            subject = Subject("role", role.name, role.agents)
            side = _side(role, point)
            in_place = Condition(role.server_id, side).key or ""
            episodes = {
                who: subject.returns(seen[who].returns)
                for who in (AS_LEARNED, in_place, untrained(in_place))
                if who in seen
            }
            if measured := Measured.of(point, episodes, in_place):
                curve.add((point.env_steps, against_random([measured]), side))

    def shown(self, role: Role, *, has_updates: bool = True) -> dict[str, Any]:
        """Returns a role's results for the page.

        These are points ``(env_steps, mean, low, high)``, and of the last evaluation the advantage
        and the return of untrained agents, as ``(mean, low, high)``. Intervals are over episodes;
        their ends are None if there are too few episodes.

        For a server that plays itself, only conditions with one side replaced show what random
        agents do.

        Args:
            role: to show.
            has_updates: whether the learner of the role's server made an update.
        """
        curve = self._curves[role].points if self._series.should_explore is not None else ()
        measured: list[AgainstRandom] = [point for _, point, _ in curve]
        plays_itself = role.server_id in self._has_sides
        compared = [m for _, m, side in curve if m.random and (side or not plays_itself)]
        found = compared[-1] if compared else None
        verdict = str(found.verdict) if found else ""
        if measured and not has_updates:
            verdict = NO_UPDATE
        elif plays_itself and found is None:
            verdict = SIDE_BY_SIDE if self._has_sides[role.server_id] else PLAYS_ITSELF
        return {
            "evaluated": [(m.env_steps, *_ends(m.learned)) for m in measured],
            "random": [(m.env_steps, *_ends(m.random)) for m in compared if m.random],
            "untrained": _ends(found.untrained) if found and found.untrained else None,
            "advantage": _ends(found.advantage) if found and found.advantage else None,
            "verdict": verdict,
            "num_episodes": measured[-1].num_episodes if measured else 0,
        }


def _metric_curves(plan: Plan, most_points: int) -> MetricCurves:
    acting = {server_id: server.agents for server_id, server in plan.acting.items()}
    return MetricCurves(acting, _MOST_CURVES, most_points=most_points)


class _Iterations:
    """Curves and newest values from the rows of a server's training iterations."""

    def __init__(self) -> None:
        self.lags = Thinned(_highest)
        self.returns = Thinned()
        self.weights_seq_no = -1
        """Its value in the newest iteration that has one."""
        self._learned: dict[str, dict[str, Thinned]] = {}
        """By name and policy ("" for the whole server): the curve of a learner's number."""

    def add(self, row: IterationRow) -> None:
        if row.weights_seq_no is not None:
            self.weights_seq_no = row.weights_seq_no
        if row.policy_lag_mean is not None:
            self.lags.add((row.env_steps, row.policy_lag_mean, row.policy_lag_max))
        if row.episode_return_mean is not None:
            self.returns.add((row.env_steps, row.episode_return_mean))
        of_server = {"loss": row.loss} if len(row.learner) != 1 else {}
        for policy, values in ({"": of_server} | dict(row.learner)).items():
            for name, value in values.items():
                is_known = name in self._learned
                if value is None or not (is_known or len(self._learned) < _MOST_KEPT):
                    continue
                curves = self._learned.setdefault(name, {})
                curve = curves.setdefault(policy, Thinned(most=_MOST_LEARNED_POINTS))
                curve.add((row.env_steps, value))

    @property
    def learned(self) -> list[dict[str, Any]]:
        """The first numbers of the learner that change."""
        found = (
            {"name": name, "of": [{"policy": p, "points": c.points} for p, c in curves.items()]}
            for name, curves in self._learned.items()
            if any(len({value for _, value in curve.points}) > 1 for curve in curves.values())
        )
        return list(islice(found, _MOST_LEARNED))


def _highest(first: Point, second: Point) -> Point:
    """Joins two points to the later mean or median and the higher maximum or 99th percentile."""
    return first[0], second[1], max(first[2], second[2])


def _read_about(folder: RunDirectory) -> dict[str, str]:
    """Returns what the run plays and when it ends; {} if another version wrote the config."""
    try:
        config = folder.read_config()
    except (OSError, ConfigError):
        return {}
    return {"simulation": config.simulation.env, "stop": StopConditions(config.stop).text}


def _side(role: Role, point: EvaluationPoint) -> str:
    """Returns which side of their server the role's agents are; "": they are no side."""
    sides = point.sides.get(role.server_id, {})
    return next((s for s, agents in sides.items() if set(agents) == set(role.agents)), "")


def _ends(estimate: Estimate) -> tuple[float | None, ...]:
    return tuple(
        value if math.isfinite(value) else None
        for value in (estimate.mean, estimate.low, estimate.high)
    )
