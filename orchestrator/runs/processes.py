"""What runs in processes of its own, as Ray actors: servers, simulations, the evaluator.

The classes are plain; a `Run` turns them into actors. Heavy imports happen inside, so that the
orchestrator's own process stays light.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.runs.process_log import log_to
from muxrl.protocol.messages import Status
from muxrl.servers.config import ServerPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerReport:
    """What a server process says when asked."""

    status: Status
    records: list[dict[str, Any]]
    """Training records since it was asked last."""
    cpu_s: float = 0.0
    """Processor seconds since the server was ready."""


class ServerProcess:
    """A process with one policy server.

    Args:
        plan: the server.
        log_path: the process's log file.
    """

    def __init__(self, plan: ServerPlan, log_path: Path) -> None:
        log_to(log_path)
        from muxrl.servers.server import PolicyServer

        self._server = PolicyServer(plan)
        self._cpu_before_s = 0.0

    def start(self) -> tuple[str, int]:
        """Serves and learns from now on; returns "host:port" and the process id."""
        address = self._server.start()
        _settle()
        self._cpu_before_s = time.process_time()
        return address, os.getpid()

    def status(self) -> Status:
        """Returns where it stands."""
        return self._server.status()

    def report(self) -> ServerReport:
        """Returns where it stands, and the training records since the last call."""
        cpu_s = time.process_time() - self._cpu_before_s
        return ServerReport(self._server.status(), self._server.drain_records(), cpu_s)

    def finish_training(self, timeout_s: float) -> ServerReport:
        """Ends learning; the server acts on with its last weights.

        Raises:
            StillLearning: the update under way takes longer than that.
        """
        self._server.finish_training(timeout_s)
        return self.report()

    def save_soon(self, path: Path) -> None:
        """Asks for an RLlib checkpoint after the training iteration under way."""
        self._server.policies.save_soon(path)

    def save(self, path: Path) -> None:
        """Writes a checkpoint of what has finished learning; of fixed policies there is none.

        Raises:
            StillLearning: it has not finished.
            OSError: it cannot be written.
        """
        self._server.policies.save(path)

    def stop(self) -> bool:
        """Ends serving and learning; says whether all threads ended in time."""
        return self._server.stop()


@dataclass(frozen=True)
class ServerAddress:
    """How to reach a server."""

    address: str
    token: str = ""


@dataclass
class SimulationReport:
    """What a simulation process has played since it was asked last."""

    num_env_steps: int = 0
    """In all, not since the last time."""
    episodes: list[dict[str, float]] = field(default_factory=list)
    """Returns by agent id of the episodes that ended."""
    num_mismatches: int = 0
    cpu_s: float = 0.0
    """Processor seconds since its environments were made."""


def connect(
    servers: Mapping[str, ServerAddress], replaced: str | None = None, seed: int = 0
) -> Any:
    """Returns a `MultiplexingClient` of these servers, one of them replaced by random actions."""
    from muxrl.client import MultiplexingClient
    from muxrl.client.random_policy import RandomTransport
    from muxrl.client.transport import Transport
    from muxrl.client.websocket import WebSocketTransport

    transports: dict[str, str | Transport] = {}
    for server_id, server in servers.items():
        transport = WebSocketTransport(server.address, token=server.token)
        if server_id == replaced:
            spec = transport.fetch_spec()
            transport.close()
            transports[server_id] = RandomTransport(spec, seed)
        else:
            transports[server_id] = transport
    return MultiplexingClient(transports)


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
        log_to(log_path)
        from muxrl.client.adapters import make_simulation
        from muxrl.client.env_loop import EnvLoop

        self._simulations = [
            make_simulation(simulation.env, simulation.kwargs)
            for _ in range(simulation.num_envs_per_process)
        ]
        self._client = connect(servers)
        _settle()
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
            SimulationFailed, ClientError: the end of this process's work.
        """
        try:
            self._loop.run(
                on_episode=lambda result: self._episodes.append(result.returns),
                should_stop=self._should_stop.is_set,
            )
        except Exception:  # whatever it is goes on; Ray tells it to the launcher, not to this log
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
        """Lets `run` return after the step it is in."""
        self._should_stop.set()


def first_seeds(seed: int, num_envs: int) -> Iterator[int | None]:
    """One seed for each environment's first reset; then its own random numbers go on."""
    return itertools.chain((seed + i for i in range(num_envs)), itertools.repeat(None))


class EvaluationProcess:
    """A process that plays evaluation episodes, with one server's agents random or none.

    Args:
        simulation: what to make; one environment is enough here.
        servers: where actions come from.
        log_path: the process's log file.
    """

    def __init__(
        self, simulation: SimulationConfig, servers: Mapping[str, ServerAddress], log_path: Path
    ) -> None:
        log_to(log_path)
        from muxrl.client.adapters import make_simulation

        # A few in lockstep share every message; more would only make the last ones wait.
        self._simulations = [make_simulation(simulation.env, simulation.kwargs) for _ in range(4)]
        self._servers = dict(servers)

    def evaluate(
        self,
        replaced: str | None,
        first_seed: int,
        num_episodes: int,
        should_explore: Mapping[str, bool],
    ) -> dict[str, list[float]]:
        """Plays episodes that never train.

        Every condition plays the same seeds, so that differences are between like and like.

        Args:
            replaced: the server whose agents act at random, None for no one.
            first_seed: of the first episode's reset; the next ones count on.
            num_episodes: how many.
            should_explore: by server, whether actions are drawn as in training, else greedy.

        Returns:
            Agent id to its raw return in each episode, ordered by the episodes' seeds; NaN in
            those that it took no part in.
        """
        from muxrl.client.env_loop import EnvLoop, EpisodeResult

        results: list[EpisodeResult] = []
        seeds = iter(range(first_seed, first_seed + num_episodes))
        with connect(self._servers, replaced, first_seed) as client:
            loop = EnvLoop(
                self._simulations,
                client,
                mode="eval",
                should_explore=should_explore,
                seeds=seeds,
            )
            loop.run(results.append)
        results.sort(key=lambda result: result.seed or 0)
        agents = self._simulations[0].possible_agents
        return {agent: [r.returns.get(agent, math.nan) for r in results] for agent in agents}


def _settle() -> None:
    """Tells the garbage collector that what has been made so far is here to stay.

    Ray and torch bring a million objects; going through them again and again is a tenth of what a
    step costs.
    """
    gc.collect()
    gc.freeze()
