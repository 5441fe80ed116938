"""What runs in a process of its own, as a Ray actor: a server, a simulation, the evaluation.

The classes are plain; `start_actor` makes actors of them. Heavy imports happen inside, so that the
orchestrator's own process stays light.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.runs.episodes import (
    ServerAddress,
    connect,
    play_episodes,
    returns_by_agent,
)
from muxrl.orchestrator.runs.worker_process import set_up, settle
from muxrl.protocol.messages import Status
from muxrl.servers.config import ServerPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerReport:
    """A server's status, and what it has trained."""

    status: Status
    records: list[dict[str, Any]]
    """Training records since the last report."""
    cpu_s: float = 0.0
    """Processor seconds since the server was ready."""


class ServerProcess:
    """A process with one policy server.

    Args:
        plan: the server.
        log_path: the process's log file.
    """

    def __init__(self, plan: ServerPlan, log_path: Path) -> None:
        set_up(log_path)
        from muxrl.servers.server import PolicyServer

        self._server = PolicyServer(plan)
        self._cpu_before_s = 0.0

    def start(self) -> tuple[str, int]:
        """Serves and learns from now on; returns "host:port" and the process id."""
        address = self._server.start()
        settle()
        self._cpu_before_s = time.process_time()
        return address, os.getpid()

    def status(self) -> Status:
        """Returns the server's status."""
        return self._server.status()

    def report(self) -> ServerReport:
        """Returns the server's status, and its training records since the last call."""
        cpu_s = time.process_time() - self._cpu_before_s
        return ServerReport(self._server.status(), self._server.drain_records(), cpu_s)

    def finish_training(self, timeout_s: float) -> ServerReport:
        """Ends learning; the server goes on acting with its last weights.

        Raises:
            StillLearning: the update under way takes longer than that.
        """
        self._server.finish_training(timeout_s)
        return self.report()

    def save_soon(self, path: Path) -> None:
        """Asks for an RLlib checkpoint after the training iteration under way."""
        self._server.policies.save_soon(path)

    def save(self, path: Path) -> None:
        """Writes a checkpoint of policies that have finished learning; nothing for fixed ones.

        Raises:
            StillLearning: they have not finished.
            OSError: it cannot be written.
        """
        self._server.policies.save(path)

    def stop(self) -> bool:
        """Ends serving and learning; returns whether all threads ended in time."""
        return self._server.stop()


@dataclass
class SimulationReport:
    """What a simulation process has played since its last report."""

    num_env_steps: int = 0
    """Since the process began."""
    episodes: list[dict[str, float]] = field(default_factory=list)
    """Returns by agent id of the episodes that ended."""
    num_mismatches: int = 0
    cpu_s: float = 0.0
    """Processor seconds since its environments were made."""


class SimulationProcess:
    """A process that plays training episodes in one or many environments.

    Args:
        simulation: what to make, and how many of it.
        servers: where actions come from.
        seed: of the environments' first resets.
        log_path: the process's log file.
    """

    def __init__(
        self,
        simulation: SimulationConfig,
        servers: Mapping[str, ServerAddress],
        seed: int,
        log_path: Path,
    ) -> None:
        set_up(log_path)
        from muxrl.client.adapters import make_simulation
        from muxrl.client.env_loop import EnvLoop

        self._simulations = [
            make_simulation(simulation.env, simulation.kwargs)
            for _ in range(simulation.num_envs_per_process)
        ]
        self._client = connect(servers)
        settle()
        self._loop = EnvLoop(
            self._simulations,
            self._client,
            seeds=first_seeds(seed, simulation.num_envs_per_process),
        )
        self._cpu_before_s = time.process_time()
        self._should_stop = threading.Event()
        self._episodes: list[dict[str, float]] = []

    def run(self) -> None:
        """Plays until `stop` is called from another thread of the actor.

        Raises:
            SimulationFailed, ClientError: this process cannot go on.
        """
        try:
            self._loop.run(
                on_episode=lambda result: self._episodes.append(result.returns),
                should_stop=self._should_stop.is_set,
            )
        except Exception:  # Ray hands it to the launcher, but does not write it to this log
            logger.exception("the simulation gave up")
            raise
        finally:
            self._client.close()
            for simulation in self._simulations:
                simulation.close()

    def report(self) -> SimulationReport:
        """Returns what was played since the last call."""
        episodes, self._episodes = self._episodes, []
        cpu_s = time.process_time() - self._cpu_before_s
        num_mismatches = self._client.num_mismatches
        return SimulationReport(self._loop.num_env_steps, episodes, num_mismatches, cpu_s)

    def stop(self) -> None:
        """Lets `run` return after the current step."""
        self._should_stop.set()
        self._client.give_up()


def first_seeds(seed: int, num_envs: int) -> Iterator[int | None]:
    """Yields a seed for each environment's first reset, then None, which draws on from there."""
    return itertools.chain((seed + i for i in range(num_envs)), itertools.repeat(None))


class EvaluationProcess:
    """A process that plays evaluation episodes; the agents of one server may act at random.

    Args:
        simulation: what to make; one environment is enough here.
        servers: where actions come from.
        log_path: the process's log file.
    """

    def __init__(
        self, simulation: SimulationConfig, servers: Mapping[str, ServerAddress], log_path: Path
    ) -> None:
        set_up(log_path)
        from muxrl.client.adapters import make_simulation

        # A few in lockstep share every message; with more, all wait longer for the slowest.
        self._simulations = [make_simulation(simulation.env, simulation.kwargs) for _ in range(4)]
        self._servers = dict(servers)

    def evaluate(
        self,
        replaced: str | None,
        first_seed: int,
        num_episodes: int,
        should_explore: Mapping[str, bool],
    ) -> dict[str, tuple[float | None, ...]]:
        """Plays episodes that never train, on the same seeds in every condition.

        Args:
            replaced: the server whose agents act at random, None for none.
            first_seed: of the first episode's reset; the next ones count on.
            num_episodes: how many.
            should_explore: by server, whether actions are sampled as in training, else greedy.

        Returns:
            See `returns_by_agent`.
        """
        seeds = range(first_seed, first_seed + num_episodes)
        with connect(self._servers, replaced, first_seed) as client:
            episodes = play_episodes(client, self._simulations, seeds, should_explore)
        return returns_by_agent(episodes, self._simulations[0].possible_agents)
