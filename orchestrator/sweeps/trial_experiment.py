"""The experiment of one trial: the sweep's base, with the trial's roles, parameters and seed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, SimulationFacts
from muxrl.orchestrator.config.checks import is_label
from muxrl.orchestrator.config.load import set_values
from muxrl.orchestrator.config.patterns import match
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.orchestrator.sweeps.parameters import TEMPLATES
from muxrl.orchestrator.sweeps.schema import TOTAL, AlgorithmTemplate, SweepConfig
from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.config import ServerConfig
from muxrl.servers.fixed_policies import find_fixed


def experiment_config(
    config: SweepConfig,
    roles: RoleAssignment,
    parameters: Mapping[str, Any],
    seed: int,
    facts_of: Callable[[SimulationConfig], SimulationFacts],
) -> tuple[ExperimentConfig, list[str]]:
    """Returns the experiment of a trial, its names not looked up yet, and what is wrong with it.

    Args:
        config: the sweep.
        roles: which template serves which role.
        parameters: key to value, of templates and of the experiment.
        seed: of the trial.
        facts_of: asks a simulation for its agents.

    Raises:
        ConfigError: the simulation cannot be made.
    """
    of_templates = {k: v for k, v in parameters.items() if k.startswith(TEMPLATES)}
    of_experiment = {k: v for k, v in parameters.items() if k not in of_templates}
    # Parameters of the simulation decide which agents there are, so they are set first.
    early = {k: v for k, v in of_experiment.items() if k.startswith("simulation.")}
    late = {k: v for k, v in of_experiment.items() if k not in early}
    sweep, problems = set_values(config, of_templates)
    experiment, misfits = set_values(copy.deepcopy(config.experiment), early)
    problems += misfits
    if not problems and roles:
        facts = facts_of(experiment.simulation)
        problems += role_problems(config.roles, facts)
        if not problems:
            agents_of = agents_of_roles(config.roles, facts)
            problems += _replace_base_servers(experiment, agents_of, facts)
            for role, name in roles.items():
                template = sweep.algorithms[name]
                experiment.servers[role] = _server(role, name, template, agents_of[role])
    for server in experiment.servers.values():
        server.port = 0
    experiment.seed = seed
    experiment.address = ""
    experiment, misfits = set_values(experiment, late)
    return experiment, [f"parameters: {p}" for p in (*problems, *misfits)]


def agents_of_roles(
    roles: Mapping[str, Sequence[str]], facts: SimulationFacts
) -> dict[str, list[str]]:
    """Returns each role's agents, in the simulation's order."""
    names = list(facts.agents)
    found = {role: set(match(patterns, names)[0]) for role, patterns in roles.items()}
    return {role: [name for name in names if name in agents] for role, agents in found.items()}


def role_problems(roles: Mapping[str, Sequence[str]], facts: SimulationFacts) -> Iterator[str]:
    """Yields a sentence for each role that does not fit the simulation's agents."""
    names = list(facts.agents)
    owner: dict[str, str] = {}
    for role, patterns in roles.items():
        if not is_label(role) or "." in role:
            yield f"roles: {role!r} names servers; use letters, digits, '_' and '-'"
        if role == TOTAL:
            yield f"roles: {role!r} is the metric's word for all agents; rename the role"
        matched, idle = match(patterns, names)
        if not patterns:
            yield f"roles.{role}: has no agents (the simulation has {listed(names)})"
        for pattern in idle:
            hint = did_you_mean(pattern, names)
            yield (
                f"roles.{role}: {pattern!r} matches no agent{hint} (the simulation has "
                f"{listed(names)})"
            )
        for agent in matched:
            if agent in owner:
                yield f"roles: agent {agent!r} is in {owner[agent]!r} and {role!r}; one can have it"
            owner[agent] = role


def _replace_base_servers(
    experiment: ExperimentConfig, agents_of: Mapping[str, list[str]], facts: SimulationFacts
) -> Iterator[str]:
    """Removes the base's servers whose agents are all in roles; yields a sentence a conflict."""
    taken = {agent for agents in agents_of.values() for agent in agents}
    for server_id, server in list(experiment.servers.items()):
        agents, _ = match(server.agents, list(facts.agents))
        rest = [agent for agent in agents if agent not in taken]
        # Where all agents are in roles, a server that matches none has none left, either.
        if not rest and (agents or len(taken) == len(facts.agents)):
            del experiment.servers[server_id]
        elif len(rest) < len(agents):
            yield (
                f"roles: the base's server {server_id!r} serves {listed(rest)}, in no role, beside "
                "agents who are in one; add a role for them"
            )
        elif server_id in agents_of:
            yield f"roles: {server_id!r} is also a server of the base that stays; rename the role"


def _server(role: str, name: str, template: AlgorithmTemplate, agents: list[str]) -> ServerConfig:
    """Returns the server of a role; for a team algorithm its agents are one group."""
    values = {f.name: copy.deepcopy(getattr(template, f.name)) for f in fields(ServerConfig)}
    values |= {"algorithm": template.algorithm or name, "agents": agents, "label": name}
    if not template.groups and _needs_teams(values["algorithm"], template):
        values["groups"] = {role: agents}
    return ServerConfig(**values)


def _needs_teams(algorithm: str, template: AlgorithmTemplate) -> bool:
    """Whether the algorithm acts for teams; False if it is unknown, as `resolve` will say."""
    from muxrl.servers.algorithms.registry import get_algorithm

    try:
        find = find_fixed(algorithm)
        if find is not None:
            return find(dict(template.settings), dict(template.model)).seating.forms_teams
        return get_algorithm(algorithm).seating.forms_teams
    except ValueError:
        return False
