"""Makes one server's plan, with every agent, group, policy and setting, and says what is wrong.

- The order of a group's members is the order of their rows in the team's arrays.
- Without `policies`, a server has one policy "default" if all of its agents (or teams) look alike
  to a network. Otherwise it has one policy for each, named after it. The algorithm's `Seating`
  decides how agents form teams, which of them look alike, and whether they may share a policy.

Resolving imports torch, through the algorithms' classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np

from muxrl.client.first_look import SimulationFacts
from muxrl.orchestrator.config.checks import compares_untrained, is_file_name
from muxrl.orchestrator.config.initial_weights import find_initial_weights
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.config.shadows import shadows
from muxrl.orchestrator.storage.json_files import finite
from muxrl.protocol.patterns import match, similar_pattern
from muxrl.protocol.spaces import Box, Space, bounds
from muxrl.protocol.suggestions import listed
from muxrl.servers.agents.scaling import Scaling, scales_any
from muxrl.servers.agents.spaces import has_numbers
from muxrl.servers.config import EXTERNAL, AgentPlan, ServerPlan
from muxrl.servers.lookup import find, own_algorithms
from muxrl.servers.trainers.algorithm import Algorithm
from muxrl.servers.training.callbacks import find_callback_problems

DEFAULT_POLICY = "default"


def default_settings(plan: ServerPlan) -> dict[str, Any]:
    """Returns, as plain data, the defaults of a server's ``settings`` and ``model``."""
    algorithm = find(plan.algorithm)
    found = {"settings": algorithm.settings()}
    if algorithm.kinds() and algorithm.learns and not plan.rl_module:
        found["model"] = algorithm.model_settings()
    return finite(msgspec.to_builtins(found, str_keys=True, enc_hook=repr))


class ServerResolver:
    """Makes one server's plan, and adds a sentence on each mistake to `problems`.

    Args:
        server_id: the server's id.
        experiment: the experiment that has the server.
        agents_of: by server id: its agents, for all servers.
        facts: of the simulation.
        problems: receives a sentence for each mistake.
    """

    def __init__(
        self,
        server_id: str,
        experiment: ExperimentConfig,
        agents_of: Mapping[str, list[str]],
        facts: SimulationFacts,
        problems: list[str],
    ) -> None:
        self.server_id, self.facts, self.problems = server_id, facts, problems
        self.experiment, self.config = experiment, experiment.servers[server_id]
        self.agents_of, self.agents = agents_of, agents_of[server_id]

    def plan(self) -> ServerPlan | None:
        """Returns the plan; None if none can be made."""
        config = self.config
        try:
            algorithm = find(config.algorithm).configured(config)
        except ValueError as error:
            # Wrong settings have been reported already, with a remedy; a missing torch has not.
            if not any(
                stated.startswith(f"server {self.server_id!r}: ") for stated in self.problems
            ):
                self._refuse(error)
            return None
        if config.callbacks and not algorithm.learns:
            self._refuse(f"has callbacks, but {algorithm.name} does not learn; leave them out")
        elif config.callbacks and algorithm.name != EXTERNAL:  # which imports them itself
            for problem in find_callback_problems(config.callbacks):
                self._refuse(problem)
        if not self.agents:
            return None
        groups = self._groups(algorithm)
        if algorithm.learns and algorithm.seating.forms_teams and config.late_members == "refuse":
            self._refuse_late_members(groups)
        # It has no policies yet, but the global state even if the algorithm reads none.
        draft = self._draft(algorithm, groups)
        policies = self._policies(algorithm, draft)
        agents: dict[str, AgentPlan] = {}
        for agent_id, agent in draft.agents.items():
            team = agent.group if algorithm.seating.forms_teams else None
            policy_id = policies.get(team or agent_id)
            if policy_id is not None:  # else the policies have been refused already
                agents[agent_id] = replace(agent, policy_id=policy_id)
        sees_state = algorithm.learns and algorithm.asks_for_state
        if sees_state and config.use_global_state and self.facts.state_problem:
            self._refuse(
                f"{algorithm.name} reads the global state, but {self.facts.state_problem}; have "
                "state() always return the same number of values, or set use_global_state: false"
            )
        plan = replace(
            draft,
            agents=agents,
            state_size=draft.state_size if sees_state else None,
            scale_observations=self._scaling(algorithm, agents),
        )
        plan = replace(plan, initialize_from=self._initial_weights(algorithm, plan))
        self._check_normalization(algorithm, plan)
        if algorithm.learns and config.frame_stack < 1:
            self._refuse(
                f"has frame_stack: {config.frame_stack}, but a network reads at least one "
                "observation; with 1 nothing is stacked"
            )
        if algorithm.learns or len(agents) == len(self.agents):
            for problem in algorithm.find_problems(plan, own_algorithms()):
                self._refuse(problem)
        if algorithm.learns:
            for problem in algorithm.seating.find_problems(draft):
                self._refuse(problem)
        return plan

    def _initial_weights(self, algorithm: Algorithm, plan: ServerPlan) -> str:
        given = self.config.initialize_from
        if not given:
            for name in ("initialize_policies", "initialize_only"):
                if getattr(self.config, name) not in ({}, "all"):
                    self._refuse(
                        f"has {name} without initialize_from, which names the run or checkpoint; "
                        f"add that, or leave out {name}"
                    )
            return ""
        if not algorithm.learns:
            self._refuse(f"has initialize_from, but {algorithm.name} learns no weights")
            return ""
        path, problems = find_initial_weights(given, plan)
        for problem in problems:
            self._refuse(f"initialize_from: {problem}")
        return path

    def _scaling(self, algorithm: Algorithm, agents: Mapping[str, AgentPlan]) -> Scaling:
        """Returns which observations to scale; "none", as in older checkpoints, if none are."""
        given = self.config.scale_observations
        if not algorithm.learns:
            if given == "bounded":
                self._refuse(
                    f"has scale_observations: bounded, but {algorithm.name} does not learn: FROZEN "
                    "reads observations as in its checkpoint's training, others read them as they "
                    "are; leave it out"
                )
            return "none"
        if scales_any((agent.observation_space for agent in agents.values()), given):
            return given
        if given == "bounded" and agents:
            self._refuse(
                "has scale_observations: bounded, but no observation of its agents has bounds on "
                "both sides that it could be scaled by; leave it out, give the spaces their "
                "bounds, or set normalize_observations: true"
            )
        return "none"

    def _check_normalization(self, algorithm: Algorithm, plan: ServerPlan) -> None:
        if not algorithm.learns:
            return  # fixed policies refuse these keys themselves
        if plan.normalize_rewards and algorithm.learns_from != "newest":
            able = (one.name for one in own_algorithms() if one.learns_from == "newest")
            self._refuse(
                f"has normalize_rewards: true, but {algorithm.name} also learns from older "
                "rewards, which were divided by other deviations; leave it out, or use one of "
                f"{listed(able)}"
            )
        if plan.normalize_observations and plan.agents:
            seen = {str(a.observation_space): a.observation_space for a in plan.agents.values()}
            if not any(has_numbers(space) for space in seen.values()):
                self._refuse(
                    "has normalize_observations: true, but its agents observe no numbers "
                    f"({listed(seen)}), and one-hot vectors are not normalised; leave it out"
                )

    def _draft(self, algorithm: Algorithm, groups: dict[str, tuple[str, ...]]) -> ServerPlan:
        config, experiment = self.config, self.experiment
        group_of = {member: group for group, members in groups.items() for member in members}
        resolved: dict[str, Any] = {
            "server_id": self.server_id,
            "algorithm": algorithm.name,
            "agents": {
                a: AgentPlan("", seen, self._bounded(acted, a), group_of.get(a))
                for a, (seen, acted) in ((a, self.facts.agents[a]) for a in self.agents)
            },
            "groups": groups,
            "state_size": self.facts.state_size if config.use_global_state else None,
            "settings": algorithm.complete_settings(config),
            "seed": derive_seed(experiment.seed, "server", self.server_id),
            "samples_actions": algorithm.samples_actions,
            "while_learning": algorithm.find_while_learning(config.while_learning),
            "scale_observations": "none",
            "initialize_from": "",
            "keep_replay_mib": experiment.checkpoint.replay_max_mib,
            "agents_return": experiment.simulation.respawn != "refuse",
            "keeps_untrained": algorithm.learns and compares_untrained(experiment),
            "shadow": shadows(experiment).get(self.server_id, ""),
        }
        # All other fields have the same name in config and plan.
        named = {f.name for f in fields(ServerPlan)}
        alike = {f.name: getattr(config, f.name) for f in fields(config) if f.name in named}
        return ServerPlan(**copy.deepcopy(alike) | resolved)

    def _bounded(self, actions: Space, agent_id: str) -> Space:
        """Returns an action space with the config's `action_bounds` wherever it lacks a bound."""
        given = self.config.action_bounds
        if not given or not isinstance(actions, Box):
            return actions
        if len(given) != 2 or not given[0] < given[1] or not all(map(math.isfinite, given)):
            self._refuse(f"has action_bounds {given}; expected [lowest, highest]")
            return actions
        low, high = bounds(actions)
        first, last = -math.inf, math.inf
        if np.dtype(actions.dtype).kind == "i":  # Gymnasium bounds them by their type
            first, last = float(np.iinfo(actions.dtype).min), float(np.iinfo(actions.dtype).max)
        low = np.where(low <= first, given[0], low)
        high = np.where(high >= last, given[1], high)
        if (low >= high).any():
            self._refuse(
                f"has action_bounds {given}, within which agent {agent_id!r} has no action: its "
                f"action space is {actions} from {actions.low} to {actions.high}"
            )
            return actions
        return Box(actions.shape, actions.dtype, low.tolist(), high.tolist())

    def _refuse(self, problem: object) -> None:
        self.problems.append(f"server {self.server_id!r}: {' '.join(str(problem).split())}")

    def _refuse_late_members(self, groups: Mapping[str, Sequence[str]]) -> None:
        for group, members in groups.items():
            late = [one for one in members if one not in self.facts.first_agents]
            if late and len(late) < len(members):
                self._refuse(
                    f"group {group!r} begins its episodes without {listed(late)}; if its members "
                    "take turns or join late, set late_members: allow"
                )

    def _groups(self, algorithm: Algorithm) -> dict[str, tuple[str, ...]]:
        """Returns each group's members, by name; {} if the algorithm has no use for groups."""
        if not algorithm.seating.is_joint:
            if self.config.groups:
                self._refuse(
                    f"has groups ({listed(self.config.groups)}), but {algorithm.name} "
                    f"{'learns' if algorithm.learns else 'acts'} for each agent alone; leave out "
                    "the groups, let agents share a policy with 'policies', or use a team "
                    "algorithm such as QMIX"
                )
            return {}
        groups: dict[str, tuple[str, ...]] = {}
        team_of: dict[str, str] = {}
        for group, patterns in self.config.groups.items():
            members, idle = match(patterns, self.agents)
            for pattern in idle:
                self._refuse(f"group {group!r} names {self._no_such_member(pattern)}")
            if not patterns:
                self._refuse(f"group {group!r} has no members")
            if not is_file_name(group):
                self._refuse(_bad_name("group", group))
            if group in self.agents and members != [group]:
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
        return algorithm.seating.complete_groups(groups, self.agents)

    def _no_such_member(self, pattern: str) -> str:
        elsewhere, _ = match([pattern], list(self.facts.agents))
        owner = {agent: s for s, theirs in self.agents_of.items() for agent in theirs}
        served = [agent for agent in elsewhere if agent in owner]
        if served:
            return (
                f"{pattern!r}, but agent {served[0]!r} is served by {owner[served[0]]!r}; a "
                "group's members are agents of its own server"
            )
        return (
            f"{pattern!r}, which matches none of the server's agents"
            f"{similar_pattern(pattern, self.agents)} ({listed(self.agents)})"
        )

    def _policies(self, algorithm: Algorithm, draft: ServerPlan) -> dict[str, str]:
        """Returns the policy of every unit: of each team, and of each agent that is in no team."""
        seating = algorithm.seating
        teams = draft.groups if seating.forms_teams else {}
        units = list(teams) or self.agents
        signatures = {unit: seating.signature(unit, draft) for unit in units}
        if not self.config.policies:
            are_alike = len({signature.key for signature in signatures.values()}) == 1
            if are_alike and (seating.shares_policies or len(units) == 1):
                return dict.fromkeys(units, DEFAULT_POLICY)
            why = "have different spaces" if seating.shares_policies else "share no policy"
            for unit in units:
                if not is_file_name(unit):
                    self._refuse(
                        f"its agents {why}, so each has a policy of its own name, "
                        f"but {unit!r} cannot name a file; name the policies under "
                        f"servers.{self.server_id}.policies"
                    )
            return {unit: unit for unit in units}
        policy_of: dict[str, str] = {}
        for policy, patterns in self.config.policies.items():
            if not is_file_name(policy):
                self._refuse(_bad_name("policy", policy))
            if not patterns:
                self._refuse(f"policy {policy!r} has no agents")
            own, idle = match(patterns, units)
            for pattern in idle:
                self._refuse(f"policy {policy!r} names {self._no_such_unit(pattern, teams)}")
            for unit in own:
                if unit in policy_of:
                    self._refuse(
                        f"{_kind(unit, teams)} {unit!r} is in the policies "
                        f"{policy_of[unit]!r} and {policy!r}; it can have one only"
                    )
                policy_of[unit] = policy
            if len(own) > 1 and algorithm.learns and not seating.shares_policies:
                self._refuse(
                    f"policy {policy!r} is shared by {listed(own)}, but {algorithm.name} "
                    "updates agents one after another, each with networks of its own; give each "
                    "agent a policy of its own, or leave out 'policies'"
                )
                continue
            different = [u for u in own if signatures[u].key != signatures[own[0]].key]
            if different:
                one, other = own[0], different[0]
                self._refuse(
                    f"policy {policy!r} cannot be shared by {_kind(one, teams)} {one!r} "
                    f"({signatures[one].text}) and {_kind(other, teams)} {other!r} "
                    f"({signatures[other].text}): their spaces differ"
                )
        for unit in units:
            if unit not in policy_of:
                self._refuse(
                    f"{_kind(unit, teams)} {unit!r} has no policy; add it to one of "
                    f"{listed(self.config.policies)}, or leave out 'policies'"
                )
        return policy_of

    def _no_such_unit(self, pattern: str, teams: Mapping[str, tuple[str, ...]]) -> str:
        for group, members in teams.items():
            inside, _ = match([pattern], members)
            if inside:
                return (
                    f"{pattern!r}, but agent {inside[0]!r} acts as a member of group {group!r}, "
                    "and members share one network, padded to the largest of their spaces; name "
                    "the group"
                )
        units = list(teams) or self.agents
        what = "groups" if teams else "agents"
        return (
            f"{pattern!r}, which matches none of the server's {what}"
            f"{similar_pattern(pattern, units)} ({listed(units)})"
        )


def _kind(unit: str, teams: Mapping[str, tuple[str, ...]]) -> str:
    return "group" if unit in teams and teams[unit] != (unit,) else "agent"


def _bad_name(what: str, name: str) -> str:
    return f"{what} {name!r} cannot name a file; use letters, digits, '_', '-' and '.'"
