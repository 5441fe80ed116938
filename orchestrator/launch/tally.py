"""Counts what a run has done so far: sums over its simulations, and its servers' latencies."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any

from muxrl.client.episode_metrics import EpisodeMetrics, overall
from muxrl.orchestrator.config.schema import TOTAL
from muxrl.orchestrator.launch.parameters import ParameterProgress
from muxrl.orchestrator.records.rows import JointRow, ServerState
from muxrl.orchestrator.records.series import mean_over
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.protocol.messages import Status
from muxrl.servers.network.latency import quantile

_NUM_EPISODES_AVERAGED = 100
_RATE_WINDOW_S = 10.0
_QUANTILES = {"p50": 0.5, "p99": 0.99}


class StepRate:
    """Steps per second over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, time_s: float, steps: int) -> float:
        """Adds a reading, and returns the steps per second."""
        self._points.append((time_s, steps))
        while time_s - self._points[0][0] > _RATE_WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        first_s, first_steps = self._points[0]
        return (steps - first_steps) / (time_s - first_s) if time_s > first_s else 0.0


class Total:
    """A sum over processes, each of which counts from 0 again when it is started again."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        """By process: its present count."""
        self.before: Any = 0
        """The sum of the last counts of processes that have ended."""

    @property
    def now(self) -> Any:
        return self.before + sum(self.of.values())

    def end(self, name: str) -> None:
        self.before += self.of.pop(name, 0)


_COUNTED = ("num_mismatches", "num_lost_episodes", "num_lost_steps", "num_bad_episodes")
"""Counts of processes that `SimulationReport` and `JointRow` both have, by the same names."""
_KEPT = ("time_s", "env_steps", "num_episodes", "num_restarts", "num_random_episodes", "has_played")
"""Attributes that a resumed run continues from; those that an older run lacks begin anew."""


_MAX_NAMES = 1_000
"""For how many metrics values are kept: an external simulation may name ever new metrics."""
_Ended = tuple[Mapping[str, float], EpisodeMetrics]
"""The returns by agent and the metrics of an episode that has ended."""


class Tally:
    """The counts of a run. Times are in seconds since `begin`; steps are env steps.

    Args:
        parameters: the parameters of episodes, which count each episode that has ended.
        groups: groups of agents, by their names in `JointRow.returns`.
    """

    def __init__(
        self,
        parameters: ParameterProgress | None = None,
        groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._parameters = parameters or ParameterProgress({}, {})
        self._groups = groups
        self._ended: dict[str, list[_Ended]] = {}
        """By process: episodes that do not count yet; see `_settle`."""
        self.time_s = 0.0
        self.env_steps = 0
        self.env_steps_per_s = 0.0
        self.num_episodes = 0
        self.has_played = False
        """Whether a simulation process, or the gateway, has reported env steps."""
        self.num_restarts: dict[str, int] = {}
        """By process: how often it was started again; without processes that never were."""
        self.num_random_episodes: dict[str, int] = {}
        """By server: training episodes in which its agents acted at random, because it was lost."""
        self._totals = {name: Total() for name in ("num_env_steps", *_COUNTED, "cpu_s")}
        self._num_open: dict[str, int] = {}
        """By process: open training episodes, as of its last report."""
        self.cpu = self._totals["cpu_s"]
        """Processor seconds of servers and simulations, without evaluations."""
        self._began_at: float | None = None
        self._recent: deque[Mapping[str, float]] = deque(maxlen=_NUM_EPISODES_AVERAGED)
        self._recent_metrics: deque[EpisodeMetrics] = deque(maxlen=_NUM_EPISODES_AVERAGED)
        self._values: dict[str, deque[float]] = {}
        """By metric: its values in the last episodes that had it."""
        self._resumed_from: int | None = None
        self._restarted: list[str] = []  # processes started again since the last row
        self._rate = StepRate()
        self._server_rates: dict[str, StepRate] = {}

    def begin(self) -> None:
        """Starts the clock."""
        self._began_at = time.monotonic() - self.time_s
        self._rate.add(self.time_s, self.env_steps)

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to continue from here, for JSON."""
        self._settle()
        return {
            **{name: copy(getattr(self, name)) for name in _KEPT},
            **{name: total.now for name, total in self._totals.items()},
            "recent": list(self._recent),
            "recent_metrics": list(self._recent_metrics),
            "values": {name: list(values) for name, values in self._values.items()},
            "parameters": self._parameters.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` has returned; to be called before `begin`."""
        for name in _KEPT:
            setattr(self, name, copy(state.get(name, getattr(self, name))))
        self._resumed_from = self.env_steps
        for name, total in self._totals.items():
            total.before = state.get(name, 0)
        self._totals["num_env_steps"].before = self.env_steps
        self._recent.extend(state["recent"])
        self._recent_metrics.extend(state.get("recent_metrics", ()))
        for name, values in state.get("values", {}).items():
            self._values_of(name).extend(values)
        if "values" not in state:  # the run is older
            self._add_values(self._recent_metrics)
        self._parameters.restore(state.get("parameters", {}))

    def add(self, name: str, report: SimulationReport) -> None:
        """Adds the report of a simulation process."""
        self.has_played |= report.num_env_steps > 0
        for key, total in self._totals.items():
            total.of[name] = getattr(report, key)
        self._sum()
        self._num_open[name] = report.num_open
        self.num_episodes += len(report.episodes) + len(report.random_episodes)
        for server_id in itertools.chain.from_iterable(report.random_episodes):
            n = self.num_random_episodes.get(server_id, 0)
            self.num_random_episodes[server_id] = n + 1
        metrics = report.metrics or [{} for _ in report.episodes]
        ended = self._ended.setdefault(name, [])
        ended.extend(zip(report.episodes, metrics, strict=True))

    @property
    def parameters(self) -> ParameterProgress:
        """The parameters of episodes; all episodes that have ended are counted in them."""
        self._settle()
        return self._parameters

    def _settle(self) -> None:
        """Counts the newest episodes, ordered as if each process's had ended at even intervals.

        If it counted one process after another, the last 100 episodes might all be of one process.
        """
        ended, self._ended = self._ended, {}
        by_time = [
            ((i + 0.5) / len(episodes), episode)
            for episodes in ended.values()
            for i, episode in enumerate(episodes)
        ]
        for _, (returns, metrics) in sorted(by_time, key=lambda one: one[0]):
            self._recent.append(returns)
            self._recent_metrics.append(metrics)
            self._add_values([metrics])
            self._parameters.note(returns, metrics)

    def _sum(self) -> None:
        # A gateway without simulations must not undo the servers' counts.
        self.env_steps = max(self.env_steps, self._totals["num_env_steps"].now)

    def restart(self, name: str) -> None:
        """Notes that a process was lost and is started again; what it has done still counts.

        Its next reports begin at 0, and the episodes that were open in it are lost.
        """
        for total in self._totals.values():
            total.end(name)
        self._totals["num_lost_episodes"].before += self._num_open.pop(name, 0)
        self._sum()
        self.num_restarts[name] = self.num_restarts.get(name, 0) + 1
        self._restarted.append(name)

    def set_external(self, statuses: Mapping[str, Status]) -> None:
        """Takes the servers' counts, for an external simulation that plays without the gateway."""
        # A server that was started again goes back to its checkpoint; the run does not.
        self.env_steps = max(self.env_steps, *(s.num_env_steps for s in statuses.values()), 0)
        self.num_episodes = max(self.num_episodes, *(s.num_episodes for s in statuses.values()), 0)

    @property
    def restarts_text(self) -> str:
        """Which processes were started again, as text for people; "" if none was."""
        restarts = ", ".join(f"{name} {n}×" for name, n in self.num_restarts.items())
        return restarts and f"started again: {restarts}"

    @property
    def has_restarted(self) -> bool:
        """Whether processes were started again since the last row."""
        return bool(self._restarted)

    def tick(self) -> None:
        """Reads the clock, which stands still until `begin`: a first evaluation is no training."""
        if self._began_at is None:
            return
        self.time_s = time.monotonic() - self._began_at
        self.env_steps_per_s = self._rate.add(self.time_s, self.env_steps)

    def server_rate(self, server_id: str, num_env_steps: int) -> float:
        """Returns a server's env steps per second."""
        return self._server_rates.setdefault(server_id, StepRate()).add(self.time_s, num_env_steps)

    def metric(self, name: str) -> tuple[float, int] | None:
        """Returns a metric's mean over the last training episodes that had it, and their number.

        An episode's value is the metric of the whole episode if there is one, else the mean over
        agents. None if no episode had the metric.
        """
        self._settle()
        values = self._values.get(name)
        return (sum(values) / len(values), len(values)) if values else None

    def _add_values(self, episodes: Iterable[EpisodeMetrics]) -> None:
        for episode in episodes:
            for name, by_agent in episode.items():
                if name in self._values or len(self._values) < _MAX_NAMES:
                    self._values_of(name).append(overall(by_agent))

    def _values_of(self, name: str) -> deque[float]:
        return self._values.setdefault(name, deque(maxlen=_NUM_EPISODES_AVERAGED))

    def next_row(self, servers: Mapping[str, ServerState] | None = None) -> JointRow:
        """Returns the joint row that is recorded next.

        The first row after `restore` says at which env steps the run was resumed; the first row
        after `restart` says which processes were started again.
        """
        row = self.row(servers)
        self._resumed_from, self._restarted = None, []
        return row

    def row(self, servers: Mapping[str, ServerState] | None = None) -> JointRow:
        """Returns the joint row as of now; see `next_row`."""
        self._settle()
        names = dict.fromkeys(itertools.chain.from_iterable(self._recent_metrics))
        had = {n: [one[n] for one in self._recent_metrics if n in one] for n in names}
        return JointRow(
            resumed_from=self._resumed_from,
            restarted=self._restarted or (),
            time_s=self.time_s,
            cpu_s=self.cpu.now,
            env_steps=self.env_steps,
            episodes=self.num_episodes,
            env_steps_per_s=self.env_steps_per_s,
            **{name: self._totals[name].now for name in _COUNTED},
            num_random_episodes=dict(self.num_random_episodes),
            episode_return_mean=dict(sorted(_means(self._recent).items())),
            returns=_means(self._of_groups(one, sum(one.values())) for one in self._recent if one),
            metrics={name: _means(episodes) for name, episodes in had.items()},
            group_metrics={
                name: _means(self._of_groups(one, overall(one)) for one in episodes)
                for name, episodes in had.items()
            },
            servers=servers or {},
        )

    def _of_groups(self, episode: Mapping[str, float], total: float) -> dict[str, float]:
        means = {name: mean_over(episode, agents) for name, agents in self._groups.items()}
        return {name: one for name, one in means.items() if one is not None} | {TOTAL: total}


def _means(episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns each agent's mean over the episodes that have the agent."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for who, value in episode.items():
            values.setdefault(who, []).append(value)
    return {who: sum(those) / len(those) for who, those in values.items()}


class LatencyRecords:
    """Quantiles of how long each server took to answer since its last row."""

    def __init__(self) -> None:
        self._newest: dict[str, Mapping[str, Sequence[int]]] = {}
        self._recorded: dict[str, Mapping[str, Sequence[int]]] = {}

    def receive(self, server_id: str, counts: Mapping[str, Sequence[int]]) -> None:
        """Notes what a server reports; see `muxrl.servers.server.PolicyServer.latencies`."""
        self._newest[server_id] = counts

    def forget(self, server_id: str) -> None:
        """Notes that the server is started again: its next process counts from 0."""
        self._newest.pop(server_id, None)
        self._recorded.pop(server_id, None)

    def record(self, server_id: str) -> dict[str, float]:
        """Returns ``exchange_p50_s`` and so on; a duration not measured since the last call is left
        out."""
        newest = self._newest.get(server_id, {})
        before, self._recorded[server_id] = self._recorded.get(server_id, {}), newest
        found = {}
        for name, counts in newest.items():
            old = before.get(name, [0] * len(counts))
            # A report that a newer one has overtaken adds nothing.
            since = [max(0, n - o) for n, o in zip(counts, old, strict=True)]
            for key, share in _QUANTILES.items():
                if (seconds := quantile(since, share)) is not None:
                    found[f"{name}_{key}_s"] = float(f"{seconds:.3g}")
        return found
