"""The process with the gateway, through which simulations play that muxrl does not start.

For the run it is like a simulation process, and also like the process that plays evaluations.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.supervise.episodes import (
    FollowsServers,
    Patience,
    Played,
    ServerAddress,
    connect,
)
from muxrl.orchestrator.supervise.process import pop_all, reachable, settle
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.orchestrator.supervise.working import Rest, in_own_thread

if TYPE_CHECKING:
    from muxrl.client import MultiplexingClient

GATEWAY = "gateway"
"""Name of the gateway's process in a run: in its log, reports and messages."""
_CLOSE_S = 10.0


class GatewayProcess(FollowsServers):
    """A process with the gateway.

    Args:
        config: of the run.
        servers: behind it.
    """

    def __init__(self, config: ExperimentConfig, servers: Mapping[str, ServerAddress]) -> None:
        self._config, self._servers = config, dict(servers)
        self._should_stop = threading.Event()

    @in_own_thread
    def start(
        self,
        parameters: Mapping[str, Any],
        port: int = 0,
        num_restarts: int = 0,
        is_limited: bool = False,
    ) -> str:
        """Starts listening; returns "host:port".

        Args:
            parameters: see `set_parameters`.
            port: where it listens; 0: any free one.
            num_restarts: how often the run has started it again.
            is_limited: whether simulations train with no more env steps than `allow` says.

        Raises:
            CannotListen: the port is taken.
            ClientError: a server cannot be reached.
        """
        from muxrl.orchestrator.gateway.served import ServedGateway
        from muxrl.protocol.run_messages import PARAMETERS

        simulation = self._config.simulation
        self._served = ServedGateway(
            self._connected,
            host=simulation.gateway.host,
            port=port,
            token=simulation.gateway.token,
            agents_return=simulation.respawn != "refuse",
        )
        self._gateway = self._served.gateway
        self._gateway.num_restarts = num_restarts
        self._gateway.wanted.seed = self._config.seed
        self.set_parameters(parameters)
        if parameters:
            self._gateway.spec.offers = [PARAMETERS]
        if is_limited:
            self._gateway.limit(0)
        settle()
        self._cpu_before_s = time.process_time()
        return reachable(self._served.start())

    def _connected(self, replaced: Condition | None = None, seed: int = 0) -> MultiplexingClient:
        return connect(
            self._servers,
            replaced,
            seed,
            patience=Patience.of(self._config.timeouts),
            tells_shadows=replaced is None,
        )

    @in_own_thread
    def run(self) -> None:
        """Waits for `stop`: the simulations play by themselves."""
        self._should_stop.wait()

    def report(self) -> SimulationReport:
        """Returns what was played since the last call."""
        episodes = self._gateway.episodes
        ended = pop_all(episodes.ended)
        return SimulationReport(
            episodes.counts.num_env_steps,
            [episode.returns for episode in ended],
            self._gateway.client.num_mismatches,
            time.process_time() - self._cpu_before_s,
            num_lost_episodes=episodes.num_lost,
            metrics=[episode.metrics for episode in ended],
            num_over=episodes.num_over,
            num_open=episodes.num_training,
            under_way=self._gateway.wanted.under_way,
        )

    def hold(self, grace_s: float, timeout_s: float) -> Rest:
        """Makes all simulations wait for their answers; returns whether all do so in time."""
        self._gateway.hold()
        return Rest(lambda: self._gateway.wait_held(grace_s + timeout_s))

    def release(self) -> None:
        """Lets the simulations continue."""
        self._gateway.release()

    @in_own_thread
    def allow(self, num_env_steps: int) -> None:
        """Allows so many more env steps, and waits until all are used up, or training is over."""
        self._gateway.allow(num_env_steps)

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Sets the parameters that simulations get when training episodes start."""
        self._gateway.wanted.parameters = parameters

    @in_own_thread
    def evaluate(
        self,
        conditions: Sequence[Condition],
        first_seed: int,
        num_episodes: int,
        should_explore: Mapping[str, bool],
    ) -> list[Played]:
        """Lets the simulations play evaluation episodes, on seeds that they choose.

        Args:
            conditions: each says which agents do not act as learned, if any; all conditions are
                played by turns.
            first_seed: seed of random actions.
            num_episodes: how many episodes to play in each condition.
            should_explore: by server: whether actions are sampled as in training, else greedy.

        Returns:
            The episodes of each condition. If the evaluation was given up, only of the conditions
            before the first one that lacks episodes.
        """
        from muxrl.orchestrator.gateway.open_episode import Evaluation

        spec = self._gateway.spec
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(self._connected(condition, first_seed))
                for condition in conditions
            ]
            evaluation = Evaluation(
                clients,
                num_episodes,
                should_explore,
                of_evaluations(self._config),
                first_seed,
                self._config.evaluation.max_episode_steps,
            )
            self._gateway.evaluate(evaluation, spec.episode_timeout_s)
        of_each = evaluation.episodes, evaluation.logged_agents, evaluation.num_truncated
        played = zip(*of_each, strict=True)
        return [
            Played.of(episodes, list(spec.agents), logged, num_truncated)
            for episodes, logged, num_truncated in takewhile(
                lambda one: len(one[0]) == num_episodes, played
            )
        ]

    @in_own_thread
    def stop(self) -> None:
        """Ends training; evaluations may continue."""
        self._gateway.end_training()
        self._should_stop.set()

    @in_own_thread
    def end(self, reason: str, has_ended_well: bool) -> None:
        """Tells all simulations that there is nothing more to play, and closes all episodes."""
        from muxrl.protocol.errors import NotServing, RunOver

        self._gateway.end((RunOver if has_ended_well else NotServing)(reason), _CLOSE_S)
        self._served.stop()
