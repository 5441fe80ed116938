"""Turns a config with patterns into the plan that each server process is started with.

An agent belongs to exactly one server, whose plan says how the agent acts (see
`muxrl.orchestrator.config.server_plan`). A server's seed follows from the experiment's seed and the
server's id, so it stays the same when other servers are added, removed or moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muxrl.client.first_look import SimulationFacts
from muxrl.client.inference_modes import InferenceModes
from muxrl.client.local_policies import no_local_inference
from muxrl.orchestrator.config.checks import find_problems
from muxrl.orchestrator.config.experiment import Experiment, pool_members
from muxrl.orchestrator.config.facts import probe
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.config.shadows import acting, find_learning_problems, shadows
from muxrl.orchestrator.config.solved_pools import solved
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.patterns import match, similar_pattern
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.setting_values import AlgorithmProblem


def prepare(
    config: ExperimentConfig,
    *,
    needs_stop: bool = True,
    plays_episode: bool = False,
) -> Experiment:
    """Probes the simulation and resolves the experiment.

    Args:
        config, needs_stop: see `resolve`.
        plays_episode: whether the probe plays a whole episode; see `probe`.

    Raises:
        ConfigError: with all problems of the config; or, if it has none, with those of its
            simulation; or with those of both together.
    """
    if problems := find_problems(config, needs_stop=needs_stop):
        raise ConfigError(problems)
    doing("looking at the environment")
    return resolve(config, probe(config.simulation, is_whole=plays_episode), needs_stop=needs_stop)


def resolve(
    config: ExperimentConfig, facts: SimulationFacts, *, needs_stop: bool = True
) -> Experiment:
    """Turns a config into a plan for each server.

    Args:
        config: the experiment.
        facts: the simulation's agents and spaces, from `probe`.
        needs_stop: whether the run has to end by itself.

    Raises:
        ConfigError: with all problems.
    """
    # Not imported above: whoever only reads a config needs no code of servers.
    from muxrl.orchestrator.config.server_plan import ServerResolver
    from muxrl.orchestrator.config.warnings import warned

    problems = find_problems(config, needs_stop=needs_stop)
    agents_of = _assign_agents(config, facts, problems)
    config = solved(config, agents_of, problems)
    made = {
        s: ServerResolver(s, config, agents_of, facts, problems).plan()
        for s in config.servers
        if s in agents_of
    }
    plans = {s: plan for s, plan in made.items() if plan is not None}
    problems += find_learning_problems(config, plans)
    experiment = Experiment(_with_checkpoints(config, plans), facts, plans)
    if config.simulation.respawn != "refuse":
        problems += _respawn_problems(experiment)
    for pool, entry, kind, source in pool_members(experiment.servers):
        for problem in _source_problems(experiment, pool, entry, kind, source):
            problems.append(f"server {pool!r}: POOL's member {entry!r}: {problem}")
    if config.stop.iterations is not None and len(experiment.fixed_servers) == len(config.servers):
        problems.append(
            "stop.iterations: is given, but no server learns, so there are no iterations; "
            "leave it out"
        )
    if not problems:  # it builds networks, for which settings must be right
        problems += local_inference_problems(experiment)
    if problems:
        raise ConfigError(problems)
    return warned(experiment)


def _source_problems(
    experiment: Experiment, pool: str, entry: str, kind: str, source: str
) -> Iterator[str]:
    """Yields a sentence for each reason why a pool cannot play with a server's weights."""
    from muxrl.servers.fixed_policies.frozen import open_policies  # it imports torch
    from muxrl.servers.lookup import find

    if source not in experiment.config.servers:
        hint = similar_or_known(source, experiment.config.servers, "there are")
        yield f"{kind}: there is no server {source!r}{hint}"
        return
    theirs = experiment.servers.get(source)
    if theirs is None:
        return  # its plan has been refused
    if source in experiment.fixed_servers:
        yield f"{kind}: server {source!r} does not learn; name one that does"
        return
    if not find(theirs.algorithm).has_weights:
        yield (
            f"{kind}: server {source!r} is {theirs.algorithm}, which has no weights() and "
            "set_weights(), so a pool cannot copy its newest weights; use a checkpoint of it, with "
            "algorithm: FROZEN"
        )
        return
    if kind == "snapshots" and experiment.config.checkpoint.keep_every_env_steps is None:
        yield "snapshots: the run keeps none; set checkpoint.keep_every_env_steps"
    plan = experiment.servers[pool]
    policies = plan.settings["members"][entry].get("policies", {})
    try:
        live = LiveCheckpoint.of_plan(theirs, {}, {})
        modules = open_policies(live, policies)
    except AlgorithmProblem as problem:
        yield str(problem)
        return
    yield from modules.find_problems(modules.seating.with_groups(plan))


def _respawn_problems(experiment: Experiment) -> Iterator[str]:
    for server_id, plan in experiment.servers.items():
        is_fixed = server_id in experiment.fixed_servers
        is_alone = not set(plan.agents) <= {m for team in plan.groups.values() for m in team}
        if not is_fixed and plan.model.get("use_lstm") and is_alone:
            yield (
                f"server {server_id!r}: with use_lstm, the lives of an agent that comes back "
                "(simulation.respawn) would be one sequence to the LSTM; leave out use_lstm, or "
                "use MAPPO with groups"
            )


def _with_checkpoints(
    config: ExperimentConfig, plans: Mapping[str, ServerPlan]
) -> ExperimentConfig:
    """Returns the config with absolute paths of checkpoints, and with links resolved.

    So a written config leads to the same weights later, and from another folder.
    """
    servers = dict(config.servers)
    for server_id, plan in plans.items():
        servers[server_id] = replace(
            servers[server_id],
            initialize_from=plan.initialize_from,
            settings=_as_found(servers[server_id].settings, plan.settings),
        )
    return replace(config, servers=servers)


def _as_found(given: Any, found: Any) -> Any:
    if not (isinstance(given, Mapping) and isinstance(found, Mapping)):
        return given
    return {
        key: found.get(key, value) if key == "checkpoint" else _as_found(value, found.get(key))
        for key, value in given.items()
    }


def local_inference_problems(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each server that cannot give its networks to simulations."""
    from muxrl.servers.trainers.local_inference import find_local_problem

    simulation = experiment.config.simulation
    modes = InferenceModes(simulation.inference_mode, simulation.update_interval_s)
    for server_id, plan in experiment.acting.items():
        if modes.is_local(server_id) and (problem := find_local_problem(plan)):
            reason = no_local_inference(server_id, plan.algorithm, problem)
            yield f"simulation.inference_mode: {reason}"


def reseeded(experiment: Experiment, seed: int) -> Experiment:
    """Returns the experiment as it would have been resolved with another seed."""
    servers = {
        server_id: replace(plan, seed=derive_seed(seed, "server", server_id))
        for server_id, plan in experiment.servers.items()
    }
    return replace(experiment, config=replace(experiment.config, seed=seed), servers=servers)


def _assign_agents(
    config: ExperimentConfig, facts: SimulationFacts, problems: list[str]
) -> dict[str, list[str]]:
    """Returns each server's agents, in the simulation's order."""
    names, acts = list(facts.agents), acting(config)
    owners: dict[str, list[str]] = {name: [] for name in names}
    for server_id, first in acts.items():
        matched, idle = match(config.servers[first].agents, names)
        for agent in matched:
            owners[agent].append(server_id)
        for pattern in idle:
            what = "pattern" if any(c in pattern for c in "*?[") else "name"
            problems.append(
                f"server {server_id!r}: the {what} {pattern!r} matches no agent"
                f"{similar_pattern(pattern, names)} (the simulation has {listed(names)})"
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
    found = {s: [a for a in names if s in owners[a]] for s in acts}
    found |= {s: found[other] for s, other in shadows(config).items()}
    return {s: found[s] for s in config.servers if s in found}


def _agents(names: Sequence[str]) -> str:
    return f"agent{'s' if len(names) > 1 else ''} {listed([repr(name) for name in names])}"
