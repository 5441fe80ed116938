"""Makes the environments of a run, connects to its servers, and plays evaluation episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from muxrl.client.adapters import (
    Copy,
    Simulation,
    StepResult,
    VectorSimulation,
    make_simulation,
    make_vector_simulation,
    with_sides,
)
from muxrl.client.adapters.around import Around
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.config.schema import (
    ExperimentConfig,
    SimulationConfig,
    TimeoutsConfig,
)
from muxrl.orchestrator.doing import progress
from muxrl.orchestrator.records.conditions import Condition

if TYPE_CHECKING:
    from muxrl.client import MultiplexingClient
    from muxrl.client.env_loop import EpisodeResult
    from muxrl.client.transport import Transport
    from muxrl.client.websocket import WebSocketTransport


def make_copy(simulation: SimulationConfig, process: int, number: int, **more: Any) -> Simulation:
    """Makes one environment of a run.

    Args:
        simulation: the config of the run's simulation.
        process: the number of its process, from 0; `num_processes`: the evaluation's process.
        number: the number of the environment in its process.
        more: arguments of the environment besides those of the config.

    Raises:
        SimulationError: the environment cannot be made.
    """
    copy = Copy(
        index=process * simulation.num_envs_per_process + number,
        worker_index=process + 1,
        vector_index=number,
        num_workers=simulation.num_processes,
    )
    kwargs = {**simulation.kwargs, **more}
    made = make_simulation(
        simulation.env, kwargs, copy, simulation.respawn, vector_env=simulation.vector_env
    )
    return with_sides(made, simulation.parameters)


class Bounded(Around):
    """A simulation whose episodes are truncated after `max_steps` env steps."""

    def __init__(self, simulation: Simulation, max_steps: float) -> None:
        super().__init__(simulation)
        self._max_steps = max_steps
        self.num_steps = 0
        """Env steps of the open episode; 0 if none is open."""
        self.num_ended = 0
        self.num_truncated = 0

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        self.num_steps = 0
        begun: tuple[dict[str, Any], dict[str, dict[str, Any]]] = self._inside.reset(seed, options)
        return begun

    def step(self, actions: dict[str, Any]) -> StepResult:
        result: StepResult = self._inside.step(actions)
        self.num_steps += 1 + len(result.earlier_infos)
        if not result.is_over and self.num_steps >= self._max_steps:
            self.num_truncated += 1
            result = result._replace(
                observations={},
                truncations={**result.truncations, **dict.fromkeys(result.observations, True)},
                final_observations={**result.final_observations, **result.observations},
                is_over=True,
            )
        if result.is_over:
            self.num_ended += 1
            self.num_steps = 0
        return result


def make_evaluation_copy(config: ExperimentConfig, number: int, **more: Any) -> Bounded:
    """Makes an environment of a run's evaluations; see `make_copy`."""
    simulation = config.simulation
    made = make_copy(simulation, simulation.num_processes, number, **more)
    return Bounded(made, config.evaluation.max_episode_steps)


def truncated_text(max_steps: int) -> str:
    """Returns a sentence on what it means that evaluation episodes were truncated."""
    return (
        f"evaluation episodes had not ended after {max_steps:,} env steps "
        "(evaluation.max_episode_steps) and were truncated there, so their returns lack the rest: "
        "policies that act greedily may never end an episode"
    )


def make_vector(simulation: SimulationConfig, process: int) -> VectorSimulation:
    """Makes a vector environment with all copies of a process; raises as `make_copy`."""
    num_copies = simulation.num_envs_per_process
    copy = Copy(process * num_copies, process + 1, 0, simulation.num_processes)
    made = make_vector_simulation(
        simulation.env, simulation.kwargs, num_copies, copy, simulation.respawn
    )
    sided: VectorSimulation = with_sides(made, simulation.parameters, is_vector=True)
    return sided


@dataclass
class ServerAddress:
    """How to reach a server."""

    address: str
    """"host:port"; it changes if the server is started again on another machine."""
    token: str = ""
    shadow: str = ""
    """The server that acts for this server's agents; "": it acts itself."""


class FollowsServers:
    """A process that plays, and can be told that a server has moved."""

    _servers: Mapping[str, ServerAddress]

    def move(self, server_id: str, address: str) -> None:
        """Uses a server's new address from now on."""
        self._servers[server_id].address = address


@dataclass(frozen=True)
class Patience:
    """How long servers are waited for; see `MultiplexingClient`."""

    patience_s: float = 30.0
    update_timeout_s: float = 600.0

    @classmethod
    def of(cls, timeouts: TimeoutsConfig) -> Patience:
        """Returns the patience of a run's simulations: until a lost server can be back."""
        return cls(timeouts.report_s + timeouts.start_s, timeouts.update_s)


_PATIENCE = Patience()


def transport_to(server: ServerAddress, patience: Patience) -> WebSocketTransport:
    """Returns a transport to a server, which connects when it is first used."""
    from muxrl.client.websocket import WebSocketTransport

    return WebSocketTransport(
        lambda: server.address,
        token=server.token,
        patience_s=patience.patience_s,
        update_timeout_s=patience.update_timeout_s,
    )


def connect(
    servers: Mapping[str, ServerAddress],
    replaced: Condition | str | None = None,
    seed: int = 0,
    *,
    patience: Patience = _PATIENCE,
    episode_prefix: str = "",
    instead: Mapping[str, Transport] | None = None,
    tells_shadows: bool = False,
) -> MultiplexingClient:
    """Returns a client of these servers.

    Args:
        servers: addresses by server id.
        replaced: which agents do not act as learned, and what acts instead; a text: the server
            whose agents act uniformly at random.
        seed: of random actions.
        patience: how long the client waits for servers.
        episode_prefix: beginning of the ids of the client's episodes.
        instead: by server id: transports to use in place of new ones.
        tells_shadows: whether servers with a `shadow` are sent the training episodes of the
            server that acts for their agents.
    """
    from muxrl.client import MultiplexingClient
    from muxrl.client.random_policy import RandomTransport
    from muxrl.client.replacing import RandomAgents, UntrainedAgents
    from muxrl.client.shadowed import Shadowed

    if not isinstance(replaced, Condition):
        replaced = Condition(replaced)
    transports: dict[str, str | Transport] = dict(instead or {})
    shadow, acting = replaced.shadow, {s for s, server in servers.items() if not server.shadow}
    if shadow:
        acting = acting - {replaced.server_id} | {shadow}
    for server_id, server in servers.items():
        if server_id in transports or server_id not in acting:
            continue
        transport = transport_to(server, patience)
        if server_id != (shadow or replaced.server_id):
            transports[server_id] = transport
        elif replaced.is_untrained:
            transports[server_id] = UntrainedAgents(transport, replaced.agents)
        elif shadow:
            transports[server_id] = transport
        elif replaced.side:
            transports[server_id] = RandomAgents(transport, replaced.agents, seed)
        else:
            spec = transport.fetch_spec()
            transport.close()
            transports[server_id] = RandomTransport(spec, seed)
    for server in servers.values() if tells_shadows else ():
        if server.shadow:
            watched = transports[server.shadow]
            assert not isinstance(watched, str)
            transports[server.shadow] = Shadowed(watched, transport_to(server, patience))
    return MultiplexingClient(transports, episode_prefix=episode_prefix)


def play_episodes(
    config: ExperimentConfig,
    client: MultiplexingClient,
    simulations: Sequence[Simulation],
    seeds: Sequence[int],
    should_explore: bool | Mapping[str, bool] | None = None,
    *,
    on_lost: Literal["raise", "restart"] = "raise",
) -> list[EpisodeResult]:
    """Plays one evaluation episode for each seed.

    Args:
        config: the config of the run; episodes have the parameters of its evaluations.
        client: the client that chooses the actions.
        simulations: the environments, played in lockstep.
        seeds: for the resets of the episodes.
        should_explore: whether actions are sampled as in training, for all servers or by server
            id; None: as each server does in evaluation.
        on_lost: see `EnvLoop`.

    Returns:
        The episodes, ordered by seed.

    Raises:
        SimulationFailed: a simulation raised.
        ClientError: a server refused a step, or cannot be reached.
    """
    from muxrl.client.env_loop import EnvLoop

    results: list[EpisodeResult] = []

    def add(result: EpisodeResult | None = None) -> None:
        results.extend([result] if result else [])
        progress(f"{len(results):,} of {len(seeds):,} episodes")

    add()
    loop = EnvLoop(
        simulations[: len(seeds)],
        client,
        mode="eval",
        should_explore=should_explore,
        seeds=iter(seeds),
        on_lost=on_lost,
        on_bad_value=config.simulation.on_bad_value,
        metrics=config.simulation.metrics,
        parameters=of_evaluations(config),
    )
    loop.run(add)
    return sorted(results, key=lambda result: result.seed or 0)


def returns_by_agent(
    episodes: Sequence[EpisodeResult], agents: Sequence[str]
) -> dict[str, tuple[float | None, ...]]:
    """Returns each agent's raw return in each episode, None where it took no part."""
    return {agent: tuple(e.returns.get(agent) for e in episodes) for agent in agents}


MetricsByName = dict[str, dict[str, tuple[float | None, ...]]]
"""By metric, then by agent or `COMMON`: a value for each episode, None if it has none."""


def metrics_by_name(episodes: Sequence[EpisodeResult]) -> MetricsByName:
    """Returns the metrics of each episode, its length among them."""
    who_has: dict[str, set[str]] = {}
    for episode in episodes:
        for name, by_agent in episode.metrics.items():
            who_has.setdefault(name, set()).update(by_agent)
    return {
        name: {
            who: tuple(e.metrics.get(name, {}).get(who) for e in episodes)
            for who in sorted(who_has[name])
        }
        for name in sorted(who_has)
    }


@dataclass(frozen=True)
class Played:
    """Evaluation episodes, as a process reports them; empty if no simulation came to play them."""

    returns: dict[str, tuple[float | None, ...]]
    """See `returns_by_agent`."""
    metrics: MetricsByName
    logged_agents: tuple[str, ...] = ()
    """Agents for which an external simulation chose at least one action itself."""
    num_truncated: int = 0
    """Episodes that were truncated after `evaluation.max_episode_steps`."""

    @classmethod
    def of(
        cls,
        episodes: Sequence[EpisodeResult],
        agents: Sequence[str],
        logged_agents: Iterable[str] = (),
        num_truncated: int = 0,
    ) -> Played:
        """Sorts the returns and metrics of episodes by agent and metric."""
        found = returns_by_agent(episodes, agents), metrics_by_name(episodes)
        return cls(*found, tuple(sorted(logged_agents)), num_truncated)
