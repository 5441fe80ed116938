"""Patterns to names: from what the user wrote to what each server process is started with.

Rules, in one place:

- A name or shell pattern (``fnmatch``, case matters) is taken as a name first, so an agent
  called ``car[1]`` can be named as it is. A pattern's matches come in the simulation's order,
  several patterns in the order in which they are written. The order of a group's members is the
  order of their rows in the team's arrays.
- A team algorithm sees every agent that is in no group as a team of one, named after the agent.
- Without `policies`, a server has one policy "default" if all of its agents (teams) look alike to
  a network, else one for each, named after it. Bounds of observations do not matter for that;
  teams are alike if they have as many members, and pad to the same sizes.
- A server's seed comes from the experiment's and the server's id (`derive_seed`): it stays when
  other servers are added, removed or moved.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.config.checks import EXTERNAL, find_problems, is_file_name
from orchestrator.config.plain_spaces import read_space
from orchestrator.config.problems import ConfigError, did_you_mean, listed
from orchestrator.config.schema import ExperimentConfig, SimulationConfig
from protocol import assignment
from protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from servers.config import AgentPlan, ServerConfig, ServerPlan
from servers.fixed_policies import FixedAlgorithm, find_fixed

if TYPE_CHECKING:
    from servers.algorithms.registry import AlgorithmEntry

DEFAULT_POLICY = "default"


@dataclass(frozen=True)
class SimulationFacts:
    """What a simulation says of itself."""

    agents: dict[str, tuple[Space, Space]]
    """Agent to its observation and action space, in the order of `possible_agents`."""
    state_size: int | None = None
    """Length of the global state that it sends, None: it sends none."""


@dataclass(frozen=True)
class Experiment:
    """An experiment in which every name is known and every number makes sense."""

    config: ExperimentConfig
    """As the user wrote it."""
    facts: SimulationFacts
    servers: dict[str, ServerPlan]
    """Server id to what its process is started with, in the order of the config."""

    @property
    def assignment(self) -> str:
        """Which algorithm serves which agents, as `protocol.assignment` writes it."""
        servers = self.config.servers
        labels = assignment.server_labels(
            {s: servers[s].label or plan.algorithm for s, plan in self.servers.items()}
        )
        return assignment.canonical({labels[s]: list(p.agents) for s, p in self.servers.items()})

    @property
    def fixed_servers(self) -> frozenset[str]:
        """Servers whose policies stay as they are."""
        return frozenset(s for s, p in self.servers.items() if find_fixed(p.algorithm) is not None)

    @property
    def is_external(self) -> bool:
        """Whether someone else starts the simulation."""
        return self.config.simulation.env == EXTERNAL


def derive_seed(seed: int, *names: str) -> int:
    """Returns a seed below 2**31 for a part of an experiment, the same on every machine.

    Args:
        seed: the experiment's.
        names: what the seed is for, such as ``"server", "qmix"``.
    """
    words = [seed, *(byte for name in names for byte in (*name.encode(), 0))]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & 0x7FFF_FFFF


def prepare(config: ExperimentConfig, *, needs_stop: bool = True) -> Experiment:
    """Probes the simulation and resolves the experiment.

    Raises:
        ConfigError: with all problems of the config, and of its simulation if that cannot be made.
    """
    try:
        facts = probe(config.simulation)
    except ConfigError as error:
        # A missing env, for one, is found by both.
        known = find_problems(config, needs_stop=needs_stop)
        about_simulation = any(p.startswith("simulation.") for p in known)
        raise ConfigError([*known, *([] if about_simulation else error.problems)]) from error
    return resolve(config, facts, needs_stop=needs_stop)


def probe(simulation: SimulationConfig) -> SimulationFacts:
    """Makes the environment once and asks for its agents and spaces; closes it again.

    An external simulation is not asked, its config says it all.

    Raises:
        ConfigError: the environment cannot be made, or a space cannot be read.
    """
    if simulation.env == EXTERNAL:
        return _external_facts(simulation)
    from client.adapters import SimulationError, make_simulation

    try:
        made = make_simulation(simulation.env, dict(simulation.kwargs))
        try:
            return SimulationFacts(
                agents={
                    agent: (made.observation_spaces[agent], made.action_spaces[agent])
                    for agent in made.possible_agents
                },
                state_size=made.state_size,
            )
        finally:
            made.close()
    except SimulationError as error:
        sentence = " ".join(str(error).split()).removeprefix("simulation ")
        raise ConfigError([f"simulation.env: {sentence}"]) from error


def _external_facts(simulation: SimulationConfig) -> SimulationFacts:
    problems: list[str] = []
    agents: dict[str, tuple[Space, Space]] = {}
    for agent_id, config in simulation.agents.items():
        spaces = []
        for kind in ("observation_space", "action_space"):
            try:
                spaces.append(read_space(getattr(config, kind)))
            except ValueError as error:  # msgspec's errors are ValueErrors, too
                problems.append(f"simulation.agents.{agent_id}.{kind}: {error}")
        if len(spaces) == 2:
            agents[agent_id] = (spaces[0], spaces[1])
    if problems:
        raise ConfigError(problems)
    return SimulationFacts(agents, simulation.state_size)


def resolve(
    config: ExperimentConfig,
    facts: SimulationFacts,
    *,
    needs_stop: bool = True,
) -> Experiment:
    """Turns what the user wrote into a plan for each server.

    Args:
        config: the experiment.
        facts: the simulation's agents and spaces, from `probe`.
        needs_stop: whether the run has to end by itself.

    Raises:
        ConfigError: with everything that cannot be run.
    """
    problems = find_problems(config, needs_stop=needs_stop)
    agents_of = _assign_agents(config, facts, problems)
    plans = {
        server_id: _ServerResolver(
            server_id, server, agents_of[server_id], agents_of, facts, problems
        ).plan(config.seed)
        for server_id, server in config.servers.items()
    }
    experiment = Experiment(config, facts, {s: p for s, p in plans.items() if p is not None})
    if config.stop.iterations is not None and len(experiment.fixed_servers) == len(config.servers):
        problems.append(
            "stop.iterations: is given, but no server learns, so that there are no iterations; "
            "leave it out"
        )
    if problems:
        raise ConfigError(problems)
    return experiment


def reseeded(experiment: Experiment, seed: int) -> Experiment:
    """Returns the experiment as it would have been resolved with another seed."""
    servers = {
        server_id: replace(plan, seed=derive_seed(seed, "server", server_id))
        for server_id, plan in experiment.servers.items()
    }
    return replace(experiment, config=replace(experiment.config, seed=seed), servers=servers)


def match(patterns: Iterable[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the names that are matched, once each, and the patterns that match none.

    Args:
        patterns: names or shell patterns; a name wins over a pattern.
        names: what there is, in the order in which one pattern's matches are returned.
    """
    matched: dict[str, None] = {}
    idle = []
    for pattern in patterns:
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        matched.update(dict.fromkeys(hits))
        if not hits:
            idle.append(pattern)
    return list(matched), idle


def _similar_pattern(pattern: str, names: Sequence[str]) -> str:
    """Returns "; did you mean ...?" from the names and the patterns that number them."""
    numbered = {name.rstrip("0123456789") + "*" for name in names if name[-1:].isdigit()}
    return did_you_mean(pattern, [*names, *sorted(numbered)] if "*" not in pattern else numbered)


def _assign_agents(
    config: ExperimentConfig, facts: SimulationFacts, problems: list[str]
) -> dict[str, list[str]]:
    """Returns each server's agents, in the simulation's order."""
    names = list(facts.agents)
    owners: dict[str, list[str]] = {name: [] for name in names}
    for server_id, server in config.servers.items():
        matched, idle = match(server.agents, names)
        for agent in matched:
            owners[agent].append(server_id)
        for pattern in idle:
            what = "pattern" if any(c in pattern for c in "*?[") else "name"
            problems.append(
                f"server {server_id!r}: the {what} {pattern!r} matches no agent"
                f"{_similar_pattern(pattern, names)} (the simulation has {listed(names)})"
            )
    if config.servers:
        unserved = [agent for agent, servers in owners.items() if not servers]
        if unserved:
            problems.append(
                f"no server serves {_agents(unserved)}; every agent needs one "
                f"(servers are {listed(config.servers)})"
            )
    by_owners: dict[tuple[str, ...], list[str]] = {}
    for agent, servers in owners.items():
        if len(servers) > 1:
            by_owners.setdefault(tuple(servers), []).append(agent)
    for shared, agents in by_owners.items():
        verb = "is" if len(agents) == 1 else "are"
        problems.append(
            f"{_agents(agents)} {verb} served by {' and '.join(map(repr, shared))}; an agent "
            "belongs to exactly one server"
        )
    return {s: [a for a in names if s in owners[a]] for s in config.servers}


def _agents(names: Sequence[str]) -> str:
    return f"agent{'s' if len(names) > 1 else ''} {listed([repr(name) for name in names])}"


class _ServerResolver:
    """Makes one server's plan, adding what is wrong to `problems`."""

    def __init__(
        self,
        server_id: str,
        config: ServerConfig,
        agents: list[str],
        agents_of: Mapping[str, Sequence[str]],
        facts: SimulationFacts,
        problems: list[str],
    ) -> None:
        self._server_id = server_id
        self._config = config
        self._agents = agents
        self._owner = {agent: s for s, theirs in agents_of.items() for agent in theirs}
        self._facts = facts
        self._problems = problems
        self._views: dict[str, tuple[str, ...]] = {}
        """Agent to those whose state its critic sees; empty where critics see no state."""

    def plan(self, seed: int) -> ServerPlan | None:
        """Returns the plan, None if there is no way to make one."""
        # Here, not above: it imports RLlib, which takes seconds.
        from servers.algorithms.registry import get_algorithm

        config = self._config
        settings, model = dict(config.settings), dict(config.model)
        find = find_fixed(config.algorithm)
        algorithm: AlgorithmEntry | FixedAlgorithm
        try:
            algorithm = find(settings, model) if find else get_algorithm(config.algorithm)
        except ValueError as error:
            self._refuse(error)
            return None
        if isinstance(algorithm, FixedAlgorithm):
            settings = algorithm.settings
            if config.while_learning == "wait":
                self._refuse(
                    f"{algorithm.name} does not learn, so nobody waits for it; leave out "
                    "while_learning"
                )
            if config.rl_module:
                self._refuse(f"{algorithm.name} has no networks of its own; leave out rl_module")
        else:
            try:
                algorithm.make_config(settings, model, config.rl_module)
            except ValueError as error:
                self._refuse(error)
        if not self._agents:
            return None
        groups = self._groups(algorithm)
        team_of = {member: group for group, members in groups.items() for member in members}
        everybody = tuple(self._agents)
        if algorithm.is_central:
            self._views = {a: groups.get(team_of.get(a, ""), everybody) for a in self._agents}
        policies = self._policies({} if algorithm.is_central else groups)
        plans: dict[str, AgentPlan] = {}
        for agent in self._agents:
            policy = policies.get(agent if algorithm.is_central else team_of.get(agent, agent))
            if policy is None:
                continue  # said already
            observation_space, action_space = self._facts.agents[agent]
            plans[agent] = AgentPlan(policy, observation_space, action_space, team_of.get(agent))
        if not isinstance(algorithm, FixedAlgorithm):
            self._check_spaces(algorithm, plans)
            is_all_in_view = algorithm.is_central and len(team_of) < len(self._agents)
            self._check_states({**groups, "(all agents)": everybody} if is_all_in_view else groups)
        while_learning = config.while_learning
        plan = ServerPlan(
            server_id=self._server_id,
            algorithm=algorithm.name,
            agents=plans,
            groups=groups,
            state_size=self._state_size(algorithm),
            team_reward=config.team_reward,
            settings=settings,
            model=model,
            while_learning=(
                algorithm.default_while_learning if while_learning == "auto" else while_learning
            ),
            max_policy_lag=config.max_policy_lag,
            host=config.host,
            port=config.port,
            token=config.token,
            seed=derive_seed(seed, "server", self._server_id),
            resources=config.resources,
            limits=config.limits,
            late_members=config.late_members,
            use_global_state=config.use_global_state,
            is_central=algorithm.is_central,
            rl_module=config.rl_module,
            follows_masks=algorithm.follows_masks,
            samples_actions=(
                not isinstance(algorithm, FixedAlgorithm) and algorithm.samples_actions
            ),
        )
        if isinstance(algorithm, FixedAlgorithm) and len(plans) == len(self._agents):
            for problem in algorithm.find_problems(plan):
                self._refuse(problem)
        return plan

    def _state_size(self, algorithm: AlgorithmEntry | FixedAlgorithm) -> int | None:
        """Returns the length of the state that is sent; only what learns has a use for it."""
        if isinstance(algorithm, FixedAlgorithm) or not self._config.use_global_state:
            return None
        return self._facts.state_size

    def _refuse(self, problem: object) -> None:
        self._problems.append(f"server {self._server_id!r}: {' '.join(str(problem).split())}")

    def _groups(self, algorithm: AlgorithmEntry | FixedAlgorithm) -> dict[str, tuple[str, ...]]:
        """Returns the teams, those of one member last; none for an algorithm without teams.

        With a central critic an agent in no group is no team: see `servers.central_seat`.
        """
        can_have_teams = algorithm.needs_teams or algorithm.is_central
        if self._config.groups and not can_have_teams:
            self._refuse(
                f"has groups ({listed(self._config.groups)}), but {algorithm.name} "
                f"{'acts' if isinstance(algorithm, FixedAlgorithm) else 'learns'} for each agent "
                "alone; leave out the groups, let agents share a policy with 'policies', or "
                "use a team algorithm such as QMIX"
            )
        if not can_have_teams:
            return {}
        groups: dict[str, tuple[str, ...]] = {}
        team_of: dict[str, str] = {}
        for group, patterns in self._config.groups.items():
            members, idle = match(patterns, self._agents)
            for pattern in idle:
                self._refuse(f"group {group!r} names {self._no_such_member(pattern)}")
            if not patterns:
                self._refuse(f"group {group!r} has no members")
            if not is_file_name(group):
                self._refuse(_bad_name("group", group))
            if group in self._agents and members != [group]:
                self._refuse(
                    f"group {group!r} has the name of an agent that is not its only member; "
                    "rename the group"
                )
            for member in members:
                if member in team_of:
                    self._refuse(
                        f"agent {member!r} is in the groups {team_of[member]!r} and {group!r}; an "
                        "agent can be in one only"
                    )
                team_of[member] = group
            if members:
                groups[group] = tuple(members)
        if algorithm.needs_teams:
            for agent in self._agents:
                if agent not in team_of and agent not in groups:
                    groups[agent] = (agent,)
        return groups

    def _no_such_member(self, pattern: str) -> str:
        elsewhere, _ = match([pattern], list(self._facts.agents))
        served = [agent for agent in elsewhere if agent in self._owner]
        if served:
            return (
                f"{pattern!r}, but agent {served[0]!r} is served by {self._owner[served[0]]!r}; a "
                "group's members are agents of its own server"
            )
        return (
            f"{pattern!r}, which matches none of the server's agents"
            f"{_similar_pattern(pattern, self._agents)} ({listed(self._agents)})"
        )

    def _policies(self, groups: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """Returns the policy of every unit, a unit being a team or an agent in none."""
        units = list(groups) or self._agents
        looks = {unit: self._look(groups.get(unit), unit) for unit in units}
        if not self._config.policies:
            if len(set(map(repr, looks.values()))) == 1:
                return dict.fromkeys(units, DEFAULT_POLICY)
            for unit in units:
                if not is_file_name(unit):
                    self._refuse(
                        f"its agents have different spaces, so each has a policy of its own name, "
                        f"but {unit!r} cannot name a file; name the policies under "
                        f"servers.{self._server_id}.policies"
                    )
            return {unit: unit for unit in units}
        policy_of: dict[str, str] = {}
        for policy, patterns in self._config.policies.items():
            if not is_file_name(policy):
                self._refuse(_bad_name("policy", policy))
            if not patterns:
                self._refuse(f"policy {policy!r} is given to nobody")
            members, idle = match(patterns, units)
            for pattern in idle:
                self._refuse(f"policy {policy!r} names {self._no_such_unit(pattern, groups)}")
            for unit in members:
                if unit in policy_of:
                    self._refuse(
                        f"{self._kind(unit, groups)} {unit!r} is in the policies "
                        f"{policy_of[unit]!r} and {policy!r}; it can have one only"
                    )
                policy_of[unit] = policy
            different = [u for u in members if repr(looks[u]) != repr(looks[members[0]])]
            if different:
                one, other = members[0], different[0]
                self._refuse(
                    f"policy {policy!r} cannot be shared by {self._kind(one, groups)} {one!r} "
                    f"({self._shown(one, groups)}) and {self._kind(other, groups)} {other!r} "
                    f"({self._shown(other, groups)}): their spaces differ"
                )
        for unit in units:
            if unit not in policy_of:
                self._refuse(
                    f"{self._kind(unit, groups)} {unit!r} has no policy; add it to one of "
                    f"{listed(self._config.policies)}, or leave out 'policies'"
                )
        return policy_of

    def _no_such_unit(self, pattern: str, groups: Mapping[str, tuple[str, ...]]) -> str:
        for group, members in groups.items():
            inside, _ = match([pattern], members)
            if inside:
                return (
                    f"{pattern!r}, but agent {inside[0]!r} acts as a member of group {group!r}; "
                    "name the group"
                )
        units = list(groups) or self._agents
        what = "groups" if groups else "agents"
        return (
            f"{pattern!r}, which matches none of the server's {what}"
            f"{_similar_pattern(pattern, units)} ({listed(units)})"
        )

    def _kind(self, unit: str, groups: Mapping[str, tuple[str, ...]]) -> str:
        return "group" if unit in groups and groups[unit] != (unit,) else "agent"

    def _look(self, members: tuple[str, ...] | None, unit: str) -> object:
        """Returns what a network sees of a unit; its repr is compared."""
        if members is not None:
            return self._team_look(members)
        observation_space, action_space = self._facts.agents[unit]
        look = _without_bounds(observation_space), action_space
        view = self._views.get(unit)
        return look if view is None else (*look, len(view), self._view_size(view))

    def _view_size(self, view: tuple[str, ...]) -> int:
        """Returns the length of the state that the critic of one of these agents sees."""
        from servers.spaces import split_mask, split_state

        state = self._state_sizes(view)[view[0]]
        if state is not None:
            return state
        seen = [split_mask(split_state(self._facts.agents[agent][0])[0])[0] for agent in view]
        return sum(map(_flat_size, seen))

    def _team_look(self, members: tuple[str, ...]) -> tuple[int, int, int, int]:
        """Returns a team's size, the lengths of its padded observations, actions and state."""
        from servers.spaces import split_mask, split_state

        spaces = [self._facts.agents[member] for member in members]
        length = max(_flat_size(split_mask(split_state(seen)[0])[0]) for seen, _ in spaces)
        state = self._state_sizes(members)[members[0]]
        return (
            len(members),
            length,
            max(_flat_size(action) for _, action in spaces),
            len(members) * length if state is None else state,
        )

    def _state_sizes(self, members: tuple[str, ...]) -> dict[str, int | None]:
        """Returns the length of the state that each member brings to the mixer, None for none."""
        from servers.spaces import split_state

        if not self._config.use_global_state:
            return dict.fromkeys(members)
        if self._facts.state_size is not None:
            return dict.fromkeys(members, self._facts.state_size)
        states = {m: split_state(self._facts.agents[m][0])[1] for m in members}
        return {m: None if state is None else _flat_size(state) for m, state in states.items()}

    def _check_states(self, groups: Mapping[str, tuple[str, ...]]) -> None:
        for group, members in groups.items():
            sizes = self._state_sizes(members)
            other = next((m for m in members if sizes[m] != sizes[members[0]]), None)
            if other is not None:
                self._refuse(
                    f"group {group!r}: agent {members[0]!r} observes "
                    f"{_shown_state(sizes[members[0]])}, agent {other!r} "
                    f"{_shown_state(sizes[other])}; a team has one state, so give all members the "
                    "same 'state', or set use_global_state: false"
                )

    def _shown(self, unit: str, groups: Mapping[str, tuple[str, ...]]) -> str:
        if unit in groups:
            num_members, observation_size, num_actions, state = self._team_look(groups[unit])
            members = f"{num_members} member{'s' if num_members > 1 else ''}"
            is_observed = self._facts.state_size is None and bool(
                self._state_sizes(groups[unit])[groups[unit][0]]
            )
            return f"{members}, observations of {observation_size}, {num_actions} actions" + (
                f", {_shown_state(state)}" if is_observed else ""
            )
        observation_space, action_space = self._facts.agents[unit]
        bounds = ""
        if isinstance(action_space, Box):
            bounds = f" in {action_space.low}..{action_space.high}"
        view = self._views.get(unit)
        seen = "" if view is None else f", {len(view)} in view, a state of {self._view_size(view)}"
        return f"observes {observation_space}, acts {action_space}{bounds}{seen}"

    def _check_spaces(self, algorithm: AlgorithmEntry, plans: Mapping[str, AgentPlan]) -> None:
        """Shows the algorithm the spaces as its networks will see them (`servers.seats`)."""
        from servers.spaces import (
            module_observation_space,
            split_mask,
            split_state,
            to_gymnasium,
        )

        seen: set[str] = set()
        for agent, plan in plans.items():
            look = repr((plan.policy_id, plan.observation_space, plan.action_space))
            if look in seen:
                continue
            seen.add(look)
            space = plan.observation_space
            try:
                if algorithm.needs_teams:
                    space = Box((_flat_size(split_mask(split_state(space)[0])[0]),))
                if algorithm.is_central:
                    space = split_state(space)[0]
                if algorithm.masked_module is not None and not algorithm.needs_teams:
                    space = self._without_mask(agent, space, plan.action_space)
                algorithm.check_spaces(
                    plan.policy_id,
                    module_observation_space(space),
                    to_gymnasium(plan.action_space),
                    agent,
                )
            except (ValueError, TypeError) as error:
                self._refuse(error)

    def _without_mask(self, agent: str, space: Space, action_space: Space) -> Space:
        """Returns an observation space without its action mask, which has to fit the actions."""
        from servers.spaces import ACTION_MASK_KEY, split_mask

        rest, has_mask = split_mask(space)
        if not has_mask:
            return space
        assert isinstance(space, DictSpace)
        mask = space.spaces[ACTION_MASK_KEY]
        num_actions = action_space.n if isinstance(action_space, Discrete) else None
        if num_actions is None or _flat_size(mask) != num_actions or isinstance(mask, Discrete):
            self._refuse(
                f"agent {agent!r} observes the action mask {mask}, but acts {action_space}; a "
                "mask has one number for each action of a Discrete action space"
            )
        return rest


def _shown_state(size: int | None) -> str:
    return "no state" if size is None else f"a state of {size} numbers"


def _bad_name(what: str, name: str) -> str:
    return f"{what} {name!r} cannot name a file; use letters, digits, '_', '-' and '.'"


def _without_bounds(space: Space) -> Space:
    if isinstance(space, Box):
        return Box(space.shape, space.dtype)
    if isinstance(space, DictSpace):
        return DictSpace({key: _without_bounds(sub) for key, sub in space.spaces.items()})
    if isinstance(space, TupleSpace):
        return TupleSpace(tuple(map(_without_bounds, space.spaces)))
    return space


def _flat_size(space: Space) -> int:
    """Returns the length of a value of `space` as one flat array, integers one-hot."""
    if isinstance(space, Box):
        return math.prod(space.shape)
    if isinstance(space, Discrete | MultiBinary):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    return sum(
        map(_flat_size, space.spaces.values() if isinstance(space, DictSpace) else space.spaces)
    )
