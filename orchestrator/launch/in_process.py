"""Runs an experiment's servers inside this process: for studies, notebooks and tests.

They are real servers, reached over loopback, but all share one process and so one interpreter lock.
For training runs use `muxrl.orchestrator.launch.whole_run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import Simulation
from muxrl.client.env_loop import EpisodeResult
from muxrl.orchestrator.config import Experiment, ExperimentConfig, prepare
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.supervise.episodes import (
    ServerAddress,
    connect,
    make_evaluation_copy,
    play_episodes,
)
from muxrl.orchestrator.supervise.own_server import OwnServer, with_token
from muxrl.servers.config import EXTERNAL


@dataclass(frozen=True)
class Served:
    """Running servers, and their experiment."""

    experiment: Experiment
    servers: dict[str, Any]
    """By server id: a `PolicyServer`, or an `OwnServer` for an external server."""

    @property
    def addresses(self) -> dict[str, ServerAddress]:
        """By server id: where the server listens."""
        return {
            server.plan.server_id: ServerAddress(
                server.address, server.plan.token, server.plan.shadow
            )
            for server in self.servers.values()
        }

    def simulation(self) -> Simulation:
        """Makes one more environment of the experiment, as its evaluations use it."""
        return make_evaluation_copy(self.experiment.config, 0)

    def client(self, replaced: Condition | str | None = None, seed: int = 0) -> MultiplexingClient:
        """Returns a connected client.

        Args:
            replaced: a condition, or a server whose agents act at random instead.
            seed: of random actions.
        """
        return connect(self.addresses, replaced, seed, tells_shadows=True)

    def evaluate(
        self,
        num_episodes: int,
        *,
        replaced: Condition | str | None = None,
        first_seed: int = 10_000,
        should_explore: bool | Mapping[str, bool] = False,
        simulations: Sequence[Simulation] = (),
    ) -> list[EpisodeResult]:
        """Plays episodes that never train; see `play_episodes`.

        Without given `simulations`, it makes `num_envs_per_process` environments.
        """
        seeds = range(first_seed, first_seed + num_episodes)
        config = self.experiment.config
        num_envs = config.simulation.num_envs_per_process
        simulations = simulations or [self.simulation() for _ in range(num_envs)]
        with self.client(replaced, first_seed) as client:
            return play_episodes(config, client, simulations, seeds, should_explore)

    def check(self) -> None:
        """Raises `RuntimeError` if a server's training has failed."""
        for server_id, server in self.servers.items():
            problem = server.status().problem
            if problem:
                raise RuntimeError(f"server {server_id!r}: {problem}")


def serve(config: ExperimentConfig) -> contextlib.AbstractContextManager[Served]:
    """Runs an experiment's servers while the ``with`` block lasts.

    Args:
        config: the experiment's config; its simulation is made to read agents and spaces, and
            closed again.

    Raises:
        ConfigError: something in the config is wrong.
        ServerProblem: a server cannot start.
    """
    return serve_experiment(prepare(config, needs_stop=False))


@contextlib.contextmanager
def serve_experiment(experiment: Experiment) -> Iterator[Served]:
    """Runs the servers of a resolved experiment while the ``with`` block lasts.

    Raises:
        ServerProblem: a server cannot start.
        RunFailed: an external server cannot start.
    """
    from muxrl.servers.server import PolicyServer

    served = Served(experiment, {})
    try:
        for server_id, plan in experiment.servers.items():
            is_own = plan.algorithm == EXTERNAL
            server: Any = OwnServer(with_token(plan)) if is_own else PolicyServer(plan)
            served.servers[server_id] = server
            server.start()
        for pool, sources in experiment.pool_sources.items():
            for source in sources:  # initial policies; whoever trains calls `sync` with newer ones
                live = served.servers[source].policies.live()
                served.servers[pool].policies.sync(source, {}, live)
        yield served
    finally:
        for server in served.servers.values():
            server.stop()
