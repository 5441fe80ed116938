"""What a run has done so far: its simulations, summed up, and how long its servers took."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from muxrl.client.episode_metrics import EpisodeMetrics, overall
from muxrl.orchestrator.supervise.processes import SimulationReport
from muxrl.protocol.messages import Status
from muxrl.servers.latency import quantile

_NUM_EPISODES_AVERAGED = 100
_RATE_WINDOW_S = 10.0
_QUANTILES = {"p50": 0.5, "p99": 0.99}


class StepRate:
    """Steps per second over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, time_s: float, steps: int) -> float:
        """Takes in a reading and returns the steps per second."""
        self._points.append((time_s, steps))
        while time_s - self._points[0][0] > _RATE_WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        first_s, first_steps = self._points[0]
        return (steps - first_steps) / (time_s - first_s) if time_s > first_s else 0.0


class Tally:
    """Sums of a run. Times are in seconds since `begin`; steps are env steps."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.env_steps = 0
        self.env_steps_per_s = 0.0
        self.num_episodes = 0
        self.num_mismatches = 0
        self.has_played = False
        """Whether a simulation of the run, or the gateway of external ones, has reported steps."""
        self.last_records: dict[str, dict[str, Any]] = {}
        """Each server's newest training record."""
        self.cpu_s_of: dict[str, float] = {}
        """Processor seconds of each server and simulation."""
        self._began_at: float | None = None
        self._steps: dict[str, int] = {}
        self._mismatches: dict[str, int] = {}
        self._recent: deque[dict[str, float]] = deque(maxlen=_NUM_EPISODES_AVERAGED)
        self._recent_metrics: deque[EpisodeMetrics] = deque(maxlen=_NUM_EPISODES_AVERAGED)
        # Of the run's earlier processes, if it was resumed.
        self._steps_before = 0
        self._mismatches_before = 0
        self._cpu_s_before = 0.0
        self._resumed_from: int | None = None
        self.num_lost_episodes = 0
        """Training episodes that were closed early since a process was lost."""
        self.num_restarts: dict[str, int] = {}
        """By process, how often it was started again; those without are left out."""
        self.num_random_episodes: dict[str, int] = {}
        """By server, training episodes in which its agents acted at random, since it was lost."""
        self.num_lost_steps = 0
        """Steps that simulations played with local inference, of one server each, and of which that
        may know nothing, since it was lost."""
        self.num_bad_episodes = 0
        """Training episodes that ended at a value that a server refused; see `on_bad_value`."""
        self._lost_episodes: dict[str, int] = {}
        self._lost_before = 0
        self._lost_steps: dict[str, int] = {}
        self._lost_steps_before = 0
        self._restarted: list[str] = []  # since the last record
        self._rate = StepRate()
        self._server_rates: dict[str, StepRate] = {}

    def begin(self) -> None:
        """Starts the clock."""
        self._began_at = time.monotonic() - self.time_s
        self._rate.add(self.time_s, self.env_steps)

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs to go on from here, as JSON can hold it."""
        return {
            "time_s": self.time_s,
            "cpu_s": self.cpu_s,
            "env_steps": self.env_steps,
            "num_episodes": self.num_episodes,
            "num_mismatches": self.num_mismatches,
            "num_lost_episodes": self.num_lost_episodes,
            "num_lost_steps": self.num_lost_steps,
            "num_bad_episodes": self.num_bad_episodes,
            "num_restarts": dict(self.num_restarts),
            "num_random_episodes": dict(self.num_random_episodes),
            "recent": list(self._recent),
            "recent_metrics": list(self._recent_metrics),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state`; before `begin`."""
        self.time_s = state["time_s"]
        self.env_steps = self._steps_before = self._resumed_from = state["env_steps"]
        self.num_episodes = state["num_episodes"]
        self.num_mismatches = self._mismatches_before = state["num_mismatches"]
        self._cpu_s_before = state["cpu_s"]
        self.num_lost_episodes = self._lost_before = state.get("num_lost_episodes", 0)
        self.num_lost_steps = self._lost_steps_before = state.get("num_lost_steps", 0)
        self.num_bad_episodes = state.get("num_bad_episodes", 0)
        self.num_restarts = dict(state.get("num_restarts", {}))
        self.num_random_episodes = dict(state.get("num_random_episodes", {}))
        self._recent.extend(state["recent"])
        self._recent_metrics.extend(state.get("recent_metrics", ()))

    def add(self, name: str, report: SimulationReport) -> None:
        """Adds what a simulation process has played."""
        self._steps[name] = report.num_env_steps
        self.has_played |= report.num_env_steps > 0
        self._mismatches[name] = report.num_mismatches
        self.cpu_s_of[name] = report.cpu_s
        self.num_episodes += len(report.episodes) + len(report.random_episodes)
        for server_id in itertools.chain.from_iterable(report.random_episodes):
            n = self.num_random_episodes.get(server_id, 0)
            self.num_random_episodes[server_id] = n + 1
        self._recent.extend(report.episodes)
        self._recent_metrics.extend(report.metrics)
        # A gateway through which nobody plays does not undo the servers' counts.
        self.env_steps = max(self.env_steps, self._steps_before + sum(self._steps.values()))
        self.num_mismatches = self._mismatches_before + sum(self._mismatches.values())
        self._lost_episodes[name] = report.num_lost_episodes
        self.num_lost_episodes = self._lost_before + sum(self._lost_episodes.values())
        self.num_bad_episodes += report.num_bad_episodes
        self._lost_steps[name] = report.num_lost_steps
        self.num_lost_steps = self._lost_steps_before + sum(self._lost_steps.values())

    def restart(self, name: str, num_lost_episodes: int = 0) -> None:
        """Says that a process was lost and is started again; what it has done still counts.

        Args:
            name: of the process; its next reports begin at 0.
            num_lost_episodes: that were open on it.
        """
        self._steps_before += self._steps.pop(name, 0)
        self._mismatches_before += self._mismatches.pop(name, 0)
        self._cpu_s_before += self.cpu_s_of.pop(name, 0.0)
        self._lost_before += self._lost_episodes.pop(name, 0) + num_lost_episodes
        self._lost_steps_before += self._lost_steps.pop(name, 0)
        self.num_lost_episodes = self._lost_before + sum(self._lost_episodes.values())
        self.num_restarts[name] = self.num_restarts.get(name, 0) + 1
        self._restarted.append(name)

    def set_external(self, statuses: Mapping[str, Status]) -> None:
        """Takes the servers' counts instead, for an external simulation."""
        # A server that was started again goes back to its checkpoint; the run does not.
        self.env_steps = max(self.env_steps, *(s.num_env_steps for s in statuses.values()), 0)
        self.num_episodes = max(self.num_episodes, *(s.num_episodes for s in statuses.values()), 0)

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all servers and simulations together, without evaluations."""
        return self._cpu_s_before + sum(self.cpu_s_of.values())

    @property
    def has_restarted(self) -> bool:
        """Whether processes were started again since the last record."""
        return bool(self._restarted)

    def tick(self) -> None:
        """Reads the clock, which stands until `begin`: a first evaluation is no training."""
        if self._began_at is None:
            return
        self.time_s = time.monotonic() - self._began_at
        self.env_steps_per_s = self._rate.add(self.time_s, self.env_steps)

    def server_rate(self, server_id: str, num_env_steps: int) -> float:
        """Returns a server's env steps per second."""
        return self._server_rates.setdefault(server_id, StepRate()).add(self.time_s, num_env_steps)

    def metric(self, name: str) -> tuple[float, int] | None:
        """Returns a metric's mean over recent training episodes, and how many of them had it.

        That of the whole episode, else the mean over agents; None if no episode had it.
        """
        values = [overall(of[name]) for of in self._recent_metrics if name in of]
        return (sum(values) / len(values), len(values)) if values else None

    def _metric_means(self) -> dict[str, dict[str, float]]:
        values: dict[str, dict[str, list[float]]] = {}
        for episode in self._recent_metrics:
            for name, by_agent in episode.items():
                for who, value in by_agent.items():
                    values.setdefault(name, {}).setdefault(who, []).append(value)
        return {
            name: {who: sum(those) / len(those) for who, those in by_agent.items()}
            for name, by_agent in values.items()
        }

    def record(self) -> dict[str, Any]:
        """Returns the joint record as of now; see `muxrl.orchestrator.records.metrics`.

        The first one after `restore` says from where the run was resumed, the first one after
        `restart` which processes were.
        """
        agents = sorted({agent for returns in self._recent for agent in returns})
        means = {}
        for agent in agents:
            values = [returns[agent] for returns in self._recent if agent in returns]
            means[agent] = sum(values) / len(values)
        resumed_from, self._resumed_from = self._resumed_from, None
        restarted, self._restarted = self._restarted, []
        return {
            **({} if resumed_from is None else {"resumed_from": resumed_from}),
            **({"restarted": restarted} if restarted else {}),
            "time_s": self.time_s,
            "cpu_s": self.cpu_s,
            "env_steps": self.env_steps,
            "episodes": self.num_episodes,
            "env_steps_per_s": self.env_steps_per_s,
            "num_mismatches": self.num_mismatches,
            "num_lost_episodes": self.num_lost_episodes,
            **({"num_bad_episodes": self.num_bad_episodes} if self.num_bad_episodes else {}),
            **({"num_lost_steps": self.num_lost_steps} if self.num_lost_steps else {}),
            **(
                {"num_random_episodes": dict(self.num_random_episodes)}
                if self.num_random_episodes
                else {}
            ),
            "episode_return_mean": means,
            **({"metrics": self._metric_means()} if self._recent_metrics else {}),
        }


class LatencyRecords:
    """How long each server took to answer since its last record, from what it has counted."""

    def __init__(self) -> None:
        self._newest: dict[str, Mapping[str, Sequence[int]]] = {}
        self._recorded: dict[str, Mapping[str, Sequence[int]]] = {}

    def take(self, server_id: str, counts: Mapping[str, Sequence[int]]) -> None:
        """Takes what a server reports; see `muxrl.servers.server.PolicyServer.latencies`."""
        self._newest[server_id] = counts

    def forget(self, server_id: str) -> None:
        """Says that the server is started again: its next process counts from 0."""
        self._newest.pop(server_id, None)
        self._recorded.pop(server_id, None)

    def record(self, server_id: str) -> dict[str, float]:
        """Returns ``exchange_p50_s`` and so on; without what has not happened since the last."""
        newest = self._newest.get(server_id, {})
        before, self._recorded[server_id] = self._recorded.get(server_id, {}), newest
        found = {}
        for name, counts in newest.items():
            old = before.get(name, [0] * len(counts))
            # A report that was overtaken by a newer one counts nothing.
            since = [max(0, n - o) for n, o in zip(counts, old, strict=True)]
            for key, share in _QUANTILES.items():
                if (seconds := quantile(since, share)) is not None:
                    found[f"{name}_{key}_s"] = float(f"{seconds:.3g}")
        return found
