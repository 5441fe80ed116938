"""What runs in a process of its own, as a Ray actor: a server, a simulation, the evaluation.

The classes are plain; `start_actor` makes actors of them. Heavy imports happen inside, so that the
orchestrator's own process stays light.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.storage.checkpoints import SavedServer, hash_files
from muxrl.orchestrator.supervise.episodes import (
    Patience,
    Played,
    ServerAddress,
    connect,
    make_copy,
    play_episodes,
    transport_to,
)
from muxrl.orchestrator.supervise.holds import Holds
from muxrl.orchestrator.supervise.main_thread import in_main_thread
from muxrl.orchestrator.supervise.step_clock import StepClock
from muxrl.orchestrator.user_modules import find_user_modules
from muxrl.protocol.messages import Status
from muxrl.servers.config import ServerPlan

if TYPE_CHECKING:
    from muxrl.client.env_loop import EpisodeResult
    from muxrl.client.episode_metrics import EpisodeMetrics
    from muxrl.client.local_transport import LocalTransport
    from muxrl.client.network_transport import NetworkTransport

logger = logging.getLogger(__name__)

_RANDOM_AFTER_S = 3.0
"""A server that learns says so when it is asked; one that says nothing for so long is lost."""


@dataclass(frozen=True)
class ProcessId:
    """Where a process is, for whoever has to kill it."""

    pid: int
    node_id: str
    """Of its machine, as Ray calls it; "" without Ray."""

    @classmethod
    def of_this(cls) -> ProcessId:
        """Returns that of the process that asks."""
        import ray

        node_id = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        return cls(os.getpid(), node_id)


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """What a process says of itself when it is asked, about once a second."""

    process: ProcessId = field(default_factory=ProcessId.of_this)
    step_s: float = 0.0
    """How long its simulation has been in a call that has not returned; 0 if it is in none."""


@dataclass(frozen=True)
class ServerReport(ProcessReport):
    """A server's status, and what it has trained."""

    status: Status
    records: list[dict[str, Any]]
    """Training records that nobody has taken in yet."""
    cpu_s: float = 0.0
    """Processor seconds since the server was ready."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """What the server's process has spent its time on; see `muxrl.servers.feed.Activity`."""
    latencies: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """How long it took; see `muxrl.servers.server.PolicyServer.latencies`."""


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
        self._records: list[dict[str, Any]] = []
        """What has been reported, until a later call says that it was taken in."""
        self._lock = threading.Lock()  # of reports, which may be asked for at the same time

    def start(self) -> tuple[str, int]:
        """Serves and learns from now on; returns "host:port" and the process id."""
        address = reachable(self._server.start())
        settle()
        self._cpu_before_s = time.process_time()
        return address, os.getpid()

    def status(self) -> Status:
        """Returns the server's status."""
        return self._server.status()

    def abort_episodes(self, prefix: str) -> None:
        """Closes the episodes whose ids begin so as truncated."""
        self._server.abort_episodes(prefix)

    def report(self, taken: int = 0) -> ServerReport:
        """Returns the server's status, and its training records after iteration `taken`.

        They are returned again until `taken` says that they were taken in: an answer may get lost,
        since whoever asks for it may be interrupted.
        """
        cpu_s = time.process_time() - self._cpu_before_s
        with self._lock:
            self._records = [r for r in self._records if r["iteration"] > taken]
            self._records += self._server.drain_records()
            records = self._records.copy()
        return ServerReport(
            self._server.status(),
            records,
            cpu_s,
            asdict(self._server.policies.feed.activity),
            self._server.latencies(),
        )

    def finish_training(self, timeout_s: float, taken: int = 0) -> ServerReport:
        """Ends learning; the server goes on acting with its last weights. Returns a `report`.

        Raises:
            StillLearning: the update under way takes longer than that.
        """
        self._server.finish_training(timeout_s)
        return self.report(taken)

    def save(
        self, path: Path, timeout_s: float, taken: int = 0
    ) -> tuple[SavedServer, ServerReport]:
        """Writes a checkpoint between two updates.

        Args:
            path: its folder.
            timeout_s: for how long to wait for the end of an update.
            taken: see `report`.

        Returns:
            What was written, and a report as of that moment, without iterations after it.

        Raises:
            StillLearning: an update takes longer than that.
            OSError: it cannot be written.
        """
        saved = SavedServer(self._server.plan.algorithm)
        if self._server.policies.save(path, timeout_s) is not None:
            from muxrl.servers.checkpoint import ABOUT_FILE

            about = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
            saved = SavedServer(saved.algorithm, about.get("iteration", 0), hash_files(path))
        report = self.report(taken)
        before = [r for r in report.records if r["iteration"] <= saved.iteration]
        return saved, replace(report, records=before)

    def stop(self) -> bool:
        """Ends serving and learning; returns whether all threads ended in time."""
        return self._server.stop()


@dataclass(frozen=True)
class SimulationReport(ProcessReport):
    """What a simulation process has played since its last report."""

    num_env_steps: int = 0
    """Since the process began."""
    episodes: list[dict[str, float]] = field(default_factory=list)
    """Returns by agent id of the episodes that ended."""
    num_mismatches: int = 0
    cpu_s: float = 0.0
    """Processor seconds since its environments were made."""
    num_episodes_begun: int = 0
    """Of the whole run, those of earlier processes of this name included."""
    num_lost_episodes: int = 0
    """Since the process began: episodes closed early since a server was lost."""
    random_episodes: list[list[str]] = field(default_factory=list)
    """Of episodes that ended and in which agents acted at random, since their server was lost: the
    ids of these servers. The others' returns are not among `episodes`."""
    metrics: list[EpisodeMetrics] = field(default_factory=list)
    """Of `episodes`, in the same order."""
    num_lost_steps: int = 0
    """Since the process began: see `MultiplexingClient.num_lost_steps`."""
    num_over: int = 0
    """Episodes that are over, of a gateway, evaluations too; since it began."""
    num_bad_episodes: int = 0
    """Since the last report: see `EnvLoop.num_bad_episodes`."""


class SimulationProcess:
    """A process that plays training episodes in one or many environments.

    Args:
        simulation: what to make, and how many of it.
        number: of the process, from 0.
        servers: where actions come from.
        seeds: of its episodes.
        patience: how long servers are waited for.
        episode_prefix: of the ids of its episodes.
        log_path: the process's log file.
        random_while_lost: servers whose agents act at random while they are lost.
        is_limited: whether it plays no more env steps than `allow` says.
    """

    @in_main_thread
    def __init__(
        self,
        simulation: SimulationConfig,
        number: int,
        servers: Mapping[str, ServerAddress],
        seeds: EpisodeSeeds,
        patience: Patience,
        episode_prefix: str,
        log_path: Path,
        random_while_lost: Collection[str] = (),
        is_limited: bool = False,
    ) -> None:
        set_up(log_path)
        from muxrl.client.env_loop import EnvLoop
        from muxrl.client.local_transport import InferenceModes
        from muxrl.client.stand_in import StandIn

        self._clock = StepClock()
        self._simulations = [
            self._clock.watch(make_copy(simulation, number, i))
            for i in range(simulation.num_envs_per_process)
        ]
        modes = InferenceModes(simulation.inference_mode, simulation.update_interval_s)

        def reach(server_id: str, patience: Patience) -> NetworkTransport | LocalTransport:
            transport = transport_to(servers[server_id], patience)
            if not modes.is_local(server_id):
                return transport
            # Of a run that is resumed, not the same draws once more.
            begun = str(seeds.num_drawn)
            return modes.acting(transport, derive_seed(seeds.seed, "acts", server_id, begun))

        self._stand_ins = {
            server_id: StandIn(
                reach(server_id, replace(patience, patience_s=_RANDOM_AFTER_S)),
                seed=derive_seed(seeds.seed, "stand-in", server_id),
                start_s=patience.patience_s,
            )
            for server_id in random_while_lost
        }
        others = [server_id for server_id in servers if server_id not in self._stand_ins]
        instead = {**self._stand_ins, **{s: reach(s, patience) for s in others}}
        self._client = connect(
            servers, patience=patience, episode_prefix=episode_prefix, instead=instead
        )
        settle()
        self._seeds = seeds
        self._loop = EnvLoop(
            self._simulations,
            self._client,
            seeds=seeds,
            on_lost="restart",
            on_bad_value=simulation.on_bad_value,
            metrics=simulation.metrics,
        )
        if is_limited:
            self._loop.limit(0)
        self._holds = Holds(self._loop.release)
        self._cpu_before_s = time.process_time()
        self._should_stop = threading.Event()
        self._episodes: list[EpisodeResult] = []
        self._random_episodes: list[list[str]] = []

    @in_main_thread
    def run(self) -> None:
        """Plays until `stop` is called from another thread of the actor.

        Raises:
            SimulationFailed, ClientError: this process cannot go on.
        """
        try:
            self._loop.run(on_episode=self._note, should_stop=self._should_stop.is_set)
        except Exception:  # Ray hands it to the launcher, but does not write it to this log
            logger.exception("the simulation gave up")
            raise
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
        episodes, self._episodes = self._episodes, []
        random_episodes, self._random_episodes = self._random_episodes, []
        num_bad_episodes, self._loop.num_bad_episodes = self._loop.num_bad_episodes, 0
        cpu_s = time.process_time() - self._cpu_before_s
        num_mismatches = self._client.num_mismatches
        return SimulationReport(
            self._loop.num_env_steps,
            [episode.returns for episode in episodes],
            num_mismatches,
            cpu_s,
            self._seeds.num_drawn,
            self._loop.num_lost_episodes,
            random_episodes,
            [episode.metrics for episode in episodes],
            self._client.num_lost_steps,
            num_bad_episodes=num_bad_episodes,
            step_s=self._clock.step_s,
        )

    def hold(self, number: int, grace_s: float, timeout_s: float) -> bool:
        """Has the environments pause, where their episodes end or else after `grace_s`.

        Returns:
            Whether all of them paused within `timeout_s` after that.
        """
        is_on = self._holds.hold(number, lambda: self._loop.hold(grace_s))
        return is_on and self._loop.wait_held(grace_s + timeout_s)

    def release(self, number: int) -> None:
        """Lets the environments go on; see `Holds`."""
        self._holds.release(number)

    def allow(self, num_env_steps: int) -> None:
        """See `EnvLoop.allow`."""
        self._loop.allow(num_env_steps)

    def give_back(self) -> int:
        """See `EnvLoop.give_back`."""
        return self._loop.give_back()

    def stop(self) -> None:
        """Lets `run` return after the current step."""
        self._should_stop.set()
        self._client.give_up()


class EpisodeSeeds(Iterator[int]):
    """A seed for every episode of a simulation process; the n-th is the same however it got there.

    Args:
        seed: of the process.
        num_drawn: how many are used up already, by a run that is resumed.
    """

    def __init__(self, seed: int, num_drawn: int = 0) -> None:
        self.seed = seed
        self.num_drawn = num_drawn

    def __next__(self) -> int:
        self.num_drawn += 1
        return derive_seed(self.seed, "episode", str(self.num_drawn - 1))


class EvaluationProcess:
    """A process that plays evaluation episodes; agents of one server may act otherwise.

    Args:
        simulation: what to make.
        num_envs: how many of it.
        servers: where actions come from.
        patience: how long servers are waited for.
        episode_prefix: of the ids of its episodes.
        log_path: the process's log file.
    """

    @in_main_thread
    def __init__(
        self,
        simulation: SimulationConfig,
        num_envs: int,
        servers: Mapping[str, ServerAddress],
        patience: Patience,
        episode_prefix: str,
        log_path: Path,
    ) -> None:
        set_up(log_path)
        self._clock = StepClock()
        self._simulations = [
            self._clock.watch(make_copy(simulation, simulation.num_processes, i))
            for i in range(num_envs)
        ]
        self._metrics = simulation.metrics
        self._on_bad_value = simulation.on_bad_value
        self._servers = dict(servers)
        self._patience = patience
        self._episode_prefix = episode_prefix

    def report(self) -> ProcessReport:
        """Says that the process lives."""
        return ProcessReport(step_s=self._clock.step_s)

    @in_main_thread
    def evaluate(
        self,
        replaced: Condition,
        first_seed: int,
        num_episodes: int,
        should_explore: Mapping[str, bool],
    ) -> Played:
        """Plays episodes that never train, on the same seeds in every condition.

        Args:
            replaced: the agents that do not act as learned, if any.
            first_seed: of the first episode's reset; the next ones count on.
            num_episodes: how many.
            should_explore: by server, whether actions are sampled as in training, else greedy.
        """
        seeds = range(first_seed, first_seed + num_episodes)
        with connect(
            self._servers,
            replaced,
            first_seed,
            patience=self._patience,
            episode_prefix=self._episode_prefix,
        ) as client:
            episodes = play_episodes(
                client,
                self._simulations,
                seeds,
                should_explore,
                on_lost="restart",
                on_bad_value=self._on_bad_value,
                metrics=self._metrics,
            )
        return Played.of(episodes, self._simulations[0].possible_agents)

    def close(self) -> None:
        """Closes the environments, with whatever programs they have started."""
        for simulation in self._simulations:
            simulation.close()


def reachable(address: str) -> str:
    """Returns where the cluster's other machines find what listens on "host:port" of this one."""
    host, _, port = address.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return address
    import ray

    own = ray.util.get_node_ip_address()
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def set_up(log_path: Path) -> None:
    """Sends this process's stdout, stderr and logging to a file, and finds the user's modules.

    Nothing goes to a pipe: one that nobody reads fills up and stops the process that writes to it.

    Args:
        log_path: appended to; its folder is made if it is missing (another machine of a cluster).
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    find_user_modules()


def settle() -> None:
    """Tells the garbage collector that all objects made so far are here to stay.

    Ray and torch bring a million of them; going through them again and again would be a tenth of
    the cost of a step.
    """
    gc.collect()
    gc.freeze()
