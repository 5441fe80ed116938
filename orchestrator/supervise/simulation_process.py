"""A process that plays training episodes; see `Worker`. Heavy imports happen in functions."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.records.played import keep_share
from muxrl.orchestrator.supervise.episodes import (
    FollowsServers,
    Patience,
    ServerAddress,
    connect,
    make_copy,
    make_vector,
    transport_to,
)
from muxrl.orchestrator.supervise.process import ProcessReport, pop_all, settle
from muxrl.orchestrator.supervise.step_clock import StepClock
from muxrl.orchestrator.supervise.working import Rest, in_main_thread

if TYPE_CHECKING:
    from muxrl.client.env_loop import EnvLoop, EpisodeResult
    from muxrl.client.episode_metrics import EpisodeMetrics
    from muxrl.client.local_transport import LocalTransport
    from muxrl.client.network_transport import NetworkTransport

logger = logging.getLogger(__name__)


_RANDOM_AFTER_S = 3.0
"""After so long a silence, a server with a stand-in counts as lost; if it learns, its status says
so."""


@dataclass(frozen=True)
class SimulationReport(ProcessReport):
    """What a simulation process has played since its last report."""

    num_env_steps: int = 0
    """Env steps since the process began."""
    episodes: list[dict[str, float]] = field(default_factory=list)
    """For each episode that ended: the returns by agent id."""
    num_mismatches: int = 0
    cpu_s: float = 0.0
    """Processor seconds since its environments were made."""
    num_episodes_begun: int = 0
    """Episodes begun in the whole run, by earlier processes of this name, too."""
    num_lost_episodes: int = 0
    """Episodes that were closed early because a server was lost, since the process began."""
    random_episodes: list[list[str]] = field(default_factory=list)
    """For each ended episode in which agents acted at random because their server was lost: the ids
    of these servers. These episodes are not among `episodes`."""
    metrics: list[EpisodeMetrics] = field(default_factory=list)
    """Metrics of `episodes`, in the same order."""
    num_lost_steps: int = 0
    """Steps lost since the process began; see `MultiplexingClient.num_lost_steps`."""
    num_over: int = 0
    """For a gateway: the episodes that are over since it began, evaluations too."""
    num_bad_episodes: int = 0
    """Bad episodes since the process began; see `EnvLoop.num_bad_episodes`."""
    num_open: int = 0
    """Training episodes that are lost if the process is lost now."""


class SimulationProcess(FollowsServers):
    """A process that plays training episodes in one or many environments, once it is connected.

    Args:
        config: the run's config.
        number: the number of the process, from 0.
        num_drawn: episodes that earlier processes with this number have begun.
        episode_prefix: beginning of the ids of its episodes.
        is_limited: whether it plays no more env steps than `allow` gives it.
        parameters: see `set_parameters`.
        episodes: folder of recorded episodes.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        number: int,
        num_drawn: int = 0,
        episode_prefix: str = "",
        is_limited: bool = False,
        parameters: Mapping[str, Any] | None = None,
        episodes: Path = Path(),
    ) -> None:
        import muxrl.client.env_loop
        import muxrl.client.websocket  # noqa: F401  # imported while servers start

        self._config, simulation = config, config.simulation
        self._clock = StepClock()
        made: list[Any]
        if simulation.vector_env:
            made = [make_vector(simulation, number)]
        else:
            made = [
                make_copy(simulation, number, i) for i in range(simulation.num_envs_per_process)
            ]
        made = [self._clock.watch(one) for one in made]
        if simulation.record:
            share, is_vector = simulation.record, simulation.vector_env
            made = [keep_share(one, episodes, share, is_vector=is_vector) for one in made]
        self._simulations = made
        self._cpu_before_s = time.process_time()
        self._seeds = EpisodeSeeds.of_process(config.seed, str(number), num_drawn)
        self._episode_prefix = episode_prefix
        self._is_limited, self._parameters = is_limited, parameters
        self._should_stop = threading.Event()
        self._episodes: deque[EpisodeResult] = deque()
        self._random_episodes: deque[list[str]] = deque()

    def connect(self, servers: Mapping[str, ServerAddress]) -> None:
        """Connects to servers; must come before any other call.

        Args:
            servers: addresses by server id.

        Raises:
            ClientError: a server cannot be reached, or the servers do not fit together.
        """
        from muxrl.client.env_loop import EnvLoop
        from muxrl.client.inference_modes import InferenceModes
        from muxrl.client.stand_in import StandIn

        self._servers = servers
        simulation, seeds = self._config.simulation, self._seeds
        patience = Patience.of(self._config.timeouts)
        modes = InferenceModes(simulation.inference_mode, simulation.update_interval_s)

        # So that a resumed run does not repeat its draws.
        begun = str(seeds.num_drawn)

        def reach(server_id: str, patience: Patience) -> NetworkTransport | LocalTransport:
            transport = transport_to(servers[server_id], patience)
            if not modes.is_local(server_id):
                return transport
            return modes.acting(transport, derive_seed(seeds.seed, "acts", server_id, begun))

        self._stand_ins = {
            server_id: StandIn(
                reach(server_id, replace(patience, patience_s=_RANDOM_AFTER_S)),
                seed=derive_seed(seeds.seed, "stand-in", server_id, begun),
                start_s=patience.patience_s,
            )
            for server_id, server in self._config.servers.items()
            if server.on_server_loss == "random" and server_id in servers
        }
        acting = [server_id for server_id, server in servers.items() if not server.shadow]
        others = [server_id for server_id in acting if server_id not in self._stand_ins]
        instead = {**self._stand_ins, **{s: reach(s, patience) for s in others}}
        self._client = connect(
            servers,
            patience=patience,
            episode_prefix=self._episode_prefix,
            instead=instead,
            tells_shadows=True,
        )
        settle()
        made = self._simulations
        self._loop: EnvLoop = EnvLoop(
            made[0] if simulation.vector_env else made,
            self._client,
            seeds=seeds,
            on_lost="restart",
            on_bad_value=simulation.on_bad_value,
            metrics=simulation.metrics,
            parameters=self._parameters,
        )
        if self._is_limited:
            self._loop.limit(0)

    @in_main_thread
    def run(self) -> None:
        """Plays until `stop` is called from another thread.

        Raises:
            SimulationFailed, ClientError: the process cannot continue.
        """
        try:
            self._loop.run(on_episode=self._note, should_stop=self._should_stop.is_set)
        finally:
            self._client.close()
            for simulation in self._simulations:
                simulation.close()

    def _note(self, result: EpisodeResult) -> None:
        at_random = [s for s, one in self._stand_ins.items() if one.plays(result.episode_id)]
        if at_random:
            self._random_episodes.append(at_random)
        else:
            self._episodes.append(result)

    def report(self) -> SimulationReport:
        """Returns what was played since the last call."""
        episodes = pop_all(self._episodes)
        cpu_s = time.process_time() - self._cpu_before_s
        num_mismatches = self._client.num_mismatches
        return SimulationReport(
            self._loop.num_env_steps,
            [episode.returns for episode in episodes],
            num_mismatches,
            cpu_s,
            self._seeds.num_drawn,
            self._loop.num_lost_episodes,
            pop_all(self._random_episodes),
            [episode.metrics for episode in episodes],
            self._client.num_lost_steps,
            num_bad_episodes=self._loop.num_bad_episodes,
            num_open=self._config.simulation.num_envs_per_process,
            step_s=self._clock.step_s,
        )

    def hold(self, grace_s: float, timeout_s: float) -> Rest:
        """Makes each environment pause at the end of its episode, or after `grace_s` at the latest.

        Returns:
            Whether all environments have paused within `grace_s` + `timeout_s`.
        """
        self._loop.hold(grace_s)
        return Rest(lambda: self._loop.wait_held(grace_s + timeout_s))

    def release(self) -> None:
        """Lets the environments continue."""
        self._loop.release()

    def allow(self, num_env_steps: int) -> Rest:
        """Allows so many more env steps; returns once all are used up, or the loop has ended."""
        self._loop.allow(num_env_steps)
        return Rest(self._loop.wait_used_up)

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """See `EnvLoop.parameters`."""
        self._loop.parameters = parameters

    def stop(self) -> None:
        """Makes `run` return after the current step."""
        self._should_stop.set()
        self._client.give_up()


class EpisodeSeeds(Iterator[int]):
    """A seed for every episode of a simulation process; the n-th is always the same.

    Args:
        seed: the seed of the process.
        num_drawn: how many episode seeds are used up already.
    """

    def __init__(self, seed: int, num_drawn: int = 0) -> None:
        self.seed = seed
        self.num_drawn = num_drawn

    @classmethod
    def of_process(cls, seed: int, name: str, num_drawn: int = 0) -> EpisodeSeeds:
        """Returns the seeds of a process, from the run's seed and the process's name."""
        return cls(derive_seed(seed, "simulation", name.rpartition("-")[2]), num_drawn)

    def __next__(self) -> int:
        self.num_drawn += 1
        return derive_seed(self.seed, "episode", str(self.num_drawn - 1))
