"""Lets policies of different runs play together: frozen, each player on a separate server.

A player of a role has the policies of a run's checkpoint, is scripted, or acts at random. Its
server is started when it is first needed and then kept, so that another pair of players costs only
its episodes. No player learns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from muxrl.client import MultiplexingClient
from muxrl.client.first_look import SimulationFacts
from muxrl.client.random_policy import RandomTransport
from muxrl.orchestrator.comparisons.findings.contestants import Roles, server_of_role
from muxrl.orchestrator.comparisons.findings.head_to_head import RANDOM
from muxrl.orchestrator.config import Experiment, ExperimentConfig
from muxrl.orchestrator.config.facts import probe
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.config.seeds import derive_seed, evaluation_seed
from muxrl.orchestrator.errors import CannotCompare, CannotEvaluate, ConfigError
from muxrl.orchestrator.evaluations.frozen import FrozenRun, Player, random_server, seated
from muxrl.orchestrator.launch.in_process import serve_experiment
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import LAST
from muxrl.orchestrator.supervise.episodes import (
    Bounded,
    ServerAddress,
    connect,
    make_evaluation_copy,
    play_episodes,
    returns_by_agent,
    truncated_text,
)
from muxrl.servers.config import ServerConfig
from muxrl.servers.fixed_names import is_fixed
from muxrl.servers.setting_values import AlgorithmProblem

_REST = "rest"


def random_player(run: RecordedRun, role: str, agents: Sequence[str]) -> Player:
    """Returns a random player of a role, with the action bounds that the role has in a run."""
    return Player(random_server(server_of_role(run, agents)[1], agents), RANDOM, role)


def random_players(run: RecordedRun, roles: Roles) -> dict[str, Player]:
    """Returns a `random_player` for each role."""
    return {role: random_player(run, role, agents) for role, agents in roles.items()}


def player_of(
    run: RecordedRun,
    role: str,
    agents: Sequence[str],
    label: str,
    *,
    should_explore: bool,
    checkpoint: str = LAST,
) -> Player:
    """Returns the player with a run's policies for a role, from a checkpoint if they were trained.

    Args:
        run: the run.
        role: the role that the policies played in the run.
        agents: the agents of the role.
        label: name of the player in tables.
        should_explore: whether stochastic policies are sampled.
        checkpoint: name of its folder under ``checkpoints``; of a pool, always the last is used.

    Raises:
        CannotCompare: there is no such checkpoint, or a team has members outside the role.
    """
    server_id, server = server_of_role(run, agents)
    if server.algorithm.upper() == RANDOM.upper():
        return random_player(run, role, agents)
    trained = not is_fixed(server.algorithm)
    whose = run, server_id, agents, checkpoint if trained else LAST
    found = frozen_of(*whose, should_explore=should_explore)
    return replace(found, label=label, home=role, run=run.path if trained else None)


def frozen_of(
    run: RecordedRun,
    server_id: str,
    agents: Sequence[str],
    checkpoint: str,
    *,
    should_explore: bool,
) -> Player:
    """Returns the player with a server's policies in a run, see `FrozenRun.player`.

    Raises:
        CannotCompare: there is no such checkpoint, or a team has members besides the agents.
    """
    frozen = FrozenRun(RunDirectory(run.path), run.config, should_explore, checkpoint)
    try:
        return frozen.player(server_id, agents)
    except (AlgorithmProblem, CannotEvaluate) as error:
        raise CannotCompare(f"run {run.name!r}, server {server_id!r}: {error}") from error


class Arena:
    """Plays episodes of one simulation between players; a context manager that stops their servers.

    Args:
        config: of an experiment; episodes are played as in its evaluations.
        roles: role to its agents.

    Raises:
        CannotCompare: the simulation is external, or cannot be made.
    """

    def __init__(self, config: ExperimentConfig, roles: Roles) -> None:
        if config.simulation.env == "external":
            raise CannotCompare(
                "the simulation of these runs is external, so muxrl cannot start it and nothing "
                "can be played; compare what the runs have recorded"
            )
        self._roles = dict(roles)
        self._seed = evaluation_seed(config)
        self._stack = contextlib.ExitStack()
        self._addresses: dict[tuple[Player, str], ServerAddress] = {}
        simulation = replace(
            config.simulation, num_processes=1, num_envs_per_process=1, inference_mode="remote"
        )
        self._config = ExperimentConfig(
            "comparison", simulation=simulation, evaluation=config.evaluation
        )
        try:
            self.facts: SimulationFacts = probe(simulation)
        except ConfigError as error:
            raise CannotCompare(f"nothing can be played: {error}") from error
        self._simulation: Bounded | None = None

    def __enter__(self) -> Arena:
        self._stack.enter_context(contextlib.chdir("."))  # the environment may change the folder
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def play(self, seating: Mapping[str, Player], seeds: Sequence[int]) -> AgentReturns:
        """Plays episodes between players.

        Args:
            seating: role to its player; a player may play another role than its own.
            seeds: one for each episode's reset.

        Raises:
            CannotCompare: a player does not fit its seats.
            ServerProblem: a player's server could not be started.
            RunFailed: a player's process could not be started.
            SimulationFailed: the simulation raised.
        """
        addresses = {role: self._address(player, role) for role, player in seating.items()}
        explores = {role: player.should_explore for role, player in seating.items()}
        with connect(addresses, None, self._seed) as client:
            return self._episodes(client, seeds, explores)

    def play_at_random(self, random: Mapping[str, Player], seeds: Sequence[int]) -> AgentReturns:
        """Plays episodes in which all agents act uniformly at random.

        Args:
            random: role to its random player, whose server is not started.
            seeds: one for each episode's reset.
        """
        agents = dict(self.facts.agents)
        for role, player in random.items():
            plans = self._resolved(player, role).servers[role].agents
            agents |= {a: (p.observation_space, p.action_space) for a, p in plans.items()}
        transport = RandomTransport.for_agents(agents, self._seed)
        with MultiplexingClient({RANDOM: transport}) as client:
            return self._episodes(client, seeds)

    def notes(self) -> Iterator[str]:
        """Yields a note if episodes were truncated at their greatest length."""
        if self._simulation and (num := self._simulation.num_truncated):
            most = int(self._config.evaluation.max_episode_steps)
            yield f"{num:,} of the episodes played here: {truncated_text(most)}"

    def check_interchangeable(self, roles: Sequence[str]) -> None:
        """Checks that seats of roles can be rotated: their agents match one by one.

        Raises:
            CannotCompare: a role is unknown, or the roles' numbers of agents or spaces differ.
        """
        for role in roles:
            if role not in self._roles:
                raise CannotCompare(
                    f"roles that are interchangeable: there is no role {role!r}; the roles are "
                    f"{', '.join(self._roles)}"
                )
        spaces = [[self.facts.agents[agent] for agent in self._roles[role]] for role in roles]
        for role, theirs in zip(roles, spaces, strict=True):
            if theirs != spaces[0]:
                raise CannotCompare(
                    f"roles {roles[0]!r} and {role!r} are not interchangeable: their agents differ "
                    "in number or in their spaces"
                )

    def _episodes(
        self,
        client: MultiplexingClient,
        seeds: Sequence[int],
        explores: Mapping[str, bool] | None = None,
    ) -> AgentReturns:
        if self._simulation is None:
            self._simulation = make_evaluation_copy(self._config, 0)
            self._stack.callback(self._simulation.close)
        episodes = play_episodes(self._config, client, [self._simulation], seeds, explores)
        return returns_by_agent(episodes, list(self.facts.agents))

    def _address(self, player: Player, role: str) -> ServerAddress:
        """Returns the address of a player's server in a role; starts the server if it is new."""
        if (player, role) not in self._addresses:
            alone = seated(self._resolved(player, role), {role: player})
            served = self._stack.enter_context(serve_experiment(alone))
            self._addresses[player, role] = served.addresses[role]
        return self._addresses[player, role]

    def _resolved(self, player: Player, role: str) -> Experiment:
        seats = dict(zip(self._roles[player.home], self._roles[role], strict=True))
        server = replace(
            player.server,
            agents=list(self._roles[role]),
            policies={
                p: [seats.get(a, a) for a in who] for p, who in player.server.policies.items()
            },
            groups={g: [seats.get(a, a) for a in who] for g, who in player.server.groups.items()},
        )
        rest = [agent for agent in self.facts.agents if agent not in self._roles[role]]
        servers = {role: server}
        if rest:
            servers[_REST + role] = ServerConfig(algorithm="RANDOM", agents=rest)
        seed = derive_seed(self._seed, player.label, str(player.run or ""), role)
        config = replace(self._config, seed=seed, servers=servers)
        try:
            return resolve(config, self.facts, needs_stop=False)
        except ConfigError as error:
            whose = f" of run {player.run.name!r}" if player.run else ""
            raise CannotCompare(
                f"{player.label!r}{whose} cannot play role {role!r}: {error}"
            ) from error


def rotations(roles: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields each cyclic shift of seats, as own role to played role; the first changes nothing."""
    for shift in range(max(1, len(roles))):
        yield {home: roles[(i + shift) % len(roles)] for i, home in enumerate(roles)}
