"""One server's plan: what its agents, groups, policies and settings come to, and what is wrong.

- The order of a group's members is the order of their rows in the team's arrays.
- A team algorithm sees every agent that is in no group as a team of one, named after the agent.
- Without `policies`, a server has one policy "default" if all of its agents (teams) look alike to
  a network, else one for each, named after it.

Importing this imports RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muxrl.orchestrator.config.checks import is_file_name
from muxrl.orchestrator.config.facts import SimulationFacts
from muxrl.orchestrator.config.looks import Looks, flat_size, shown_state
from muxrl.orchestrator.config.patterns import match, similar_pattern
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space
from muxrl.servers.algorithms.registry import AlgorithmEntry, get_algorithm
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan
from muxrl.servers.fixed_policies import FixedAlgorithm, find_fixed
from muxrl.servers.spaces import (
    ACTION_MASK_KEY,
    module_observation_space,
    split_mask,
    split_state,
    to_gymnasium,
)

DEFAULT_POLICY = "default"


class ServerResolver:
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

    def plan(self, seed: int) -> ServerPlan | None:
        """Returns the plan, None if there is no way to make one."""
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
            teams, views = {}, {a: groups.get(team_of.get(a, ""), everybody) for a in self._agents}
        else:
            teams, views = groups, {}
        looks = Looks(self._facts, teams, views, config.use_global_state)
        policies = self._policies(teams, looks)
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
            seen_together = {**groups, "(all agents)": everybody} if is_all_in_view else groups
            self._check_states(seen_together, looks)
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

        With a central critic an agent in no group is no team: see `servers.algorithms.mappo.seats`.
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
            f"{similar_pattern(pattern, self._agents)} ({listed(self._agents)})"
        )

    def _policies(self, groups: Mapping[str, tuple[str, ...]], looks: Looks) -> dict[str, str]:
        """Returns the policy of every unit, a unit being a team or an agent in none."""
        units = list(groups) or self._agents
        look_of = {unit: repr(looks.of(unit)) for unit in units}
        if not self._config.policies:
            if len(set(look_of.values())) == 1:
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
            different = [u for u in members if look_of[u] != look_of[members[0]]]
            if different:
                one, other = members[0], different[0]
                self._refuse(
                    f"policy {policy!r} cannot be shared by {self._kind(one, groups)} {one!r} "
                    f"({looks.shown(one)}) and {self._kind(other, groups)} {other!r} "
                    f"({looks.shown(other)}): their spaces differ"
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
            f"{similar_pattern(pattern, units)} ({listed(units)})"
        )

    def _kind(self, unit: str, groups: Mapping[str, tuple[str, ...]]) -> str:
        return "group" if unit in groups and groups[unit] != (unit,) else "agent"

    def _check_states(self, groups: Mapping[str, tuple[str, ...]], looks: Looks) -> None:
        for group, members in groups.items():
            sizes = looks.state_sizes(members)
            other = next((m for m in members if sizes[m] != sizes[members[0]]), None)
            if other is not None:
                self._refuse(
                    f"group {group!r}: agent {members[0]!r} observes "
                    f"{shown_state(sizes[members[0]])}, agent {other!r} "
                    f"{shown_state(sizes[other])}; a team has one state, so give all members the "
                    "same 'state', or set use_global_state: false"
                )

    def _check_spaces(self, algorithm: AlgorithmEntry, plans: Mapping[str, AgentPlan]) -> None:
        """Shows the algorithm the spaces as its networks will see them (`muxrl.servers.seats`)."""
        seen: set[str] = set()
        for agent, plan in plans.items():
            look = repr((plan.policy_id, plan.observation_space, plan.action_space))
            if look in seen:
                continue
            seen.add(look)
            space = plan.observation_space
            try:
                if algorithm.needs_teams:
                    space = Box((flat_size(split_mask(split_state(space)[0])[0]),))
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
        rest, has_mask = split_mask(space)
        if not has_mask:
            return space
        assert isinstance(space, DictSpace)
        mask = space.spaces[ACTION_MASK_KEY]
        num_actions = action_space.n if isinstance(action_space, Discrete) else None
        if num_actions is None or flat_size(mask) != num_actions or isinstance(mask, Discrete):
            self._refuse(
                f"agent {agent!r} observes the action mask {mask}, but acts {action_space}; a "
                "mask has one number for each action of a Discrete action space"
            )
        return rest


def _bad_name(what: str, name: str) -> str:
    return f"{what} {name!r} cannot name a file; use letters, digits, '_', '-' and '.'"
