"""Expands a sweep to its trials, each of which is an experiment with every name looked up.

All trials are resolved before the first one starts, so that every mistake is reported at once. With
a searcher that learns, trials are not known beforehand: then one of each assignment is resolved.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muxrl.orchestrator.config import (
    Experiment,
    ExperimentConfig,
    SimulationConfig,
    SimulationFacts,
    StopConfig,
    probe,
)
from muxrl.orchestrator.config.checks import EXTERNAL, is_label, unknown_metric, unknown_server
from muxrl.orchestrator.config.load import set_values
from muxrl.orchestrator.config.resolve import reseeded, resolve
from muxrl.orchestrator.config.schema import TOTAL
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.supervise.gpus import check_gpus
from muxrl.orchestrator.supervise.own_server import ask_own_servers
from muxrl.orchestrator.sweeps.assignments import RoleAssignment, make_role_assignments
from muxrl.orchestrator.sweeps.checks import find_problems
from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.parameters import TEMPLATES, active, settings
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.protocol.assignment import file_name
from muxrl.protocol.patterns import match
from muxrl.protocol.suggestions import did_you_mean, listed
from muxrl.servers.config import ServerConfig
from muxrl.servers.fixed_names import is_fixed


@dataclass
class SweepPlan:
    """A sweep with every name looked up."""

    config: SweepConfig
    trials: list[TrialRecord] = field(default_factory=list)
    """The trials in the order in which they start. All trials of a seed come before those of the
    next, so that a sweep that is cut short has compared everything, with fewer seeds."""
    experiments: dict[str, Experiment] = field(default_factory=dict)
    """By trial id: the experiments of trials that are resolved."""
    resolved: list[Experiment] = field(default_factory=list)
    """The experiment of each known assignment and setting, with the first seed."""
    is_check: bool = False
    """Whether the plan is only made to find mistakes; see `make_plan`."""
    deferred: list[str] = field(default_factory=list)
    """Sentences on servers that are a user's own processes and cannot be asked now."""
    role_assignments: list[RoleAssignment] = field(default_factory=lambda: [{}])
    """All assignments of templates to roles; without roles, a single empty one."""
    _facts: dict[str, SimulationFacts] = field(default_factory=dict)

    @property
    def num_trials(self) -> int:
        """Number of trials of the whole sweep, with those that a searcher will still make."""
        config = self.config
        if config.searcher == "random":
            return len(self.trials)
        return config.num_samples * len(config.all_seeds)

    def resolve(
        self, roles: RoleAssignment, parameters: Mapping[str, Any], seed: int
    ) -> Experiment:
        """Returns the experiment of a trial.

        Raises:
            ConfigError: with all problems of the experiment.
        """
        config, problems = self._config(roles, parameters, seed)
        if problems:
            raise ConfigError(problems)
        return resolve(config, self.facts(config.simulation))

    def config_of(self, trial: TrialRecord) -> ExperimentConfig:
        """Returns the config of a trial's experiment, resolved or not."""
        if trial.id in self.experiments:
            return self.experiments[trial.id].config
        return self._config(trial.roles, trial.parameters, trial.seed)[0]

    def facts(self, simulation: SimulationConfig) -> SimulationFacts:
        """Returns a simulation's agents and spaces; each simulation is made only once.

        Raises:
            ConfigError: the simulation cannot be made.
        """
        key = repr(simulation)
        if key not in self._facts:
            is_first = not self._facts
            self._facts[key] = probe(simulation, is_whole=self.is_check and is_first)
        return self._facts[key]

    def _config(
        self, roles: RoleAssignment, parameters: Mapping[str, Any], seed: int
    ) -> tuple[ExperimentConfig, list[str]]:
        """Returns a trial's config, whose names are not looked up yet, and what is wrong with it.

        Raises:
            ConfigError: the simulation cannot be made.
        """
        config = self.config
        of_templates = {k: v for k, v in parameters.items() if k.startswith(TEMPLATES)}
        # Parameters of the simulation are set first, since they decide which agents there are.
        early = {k: v for k, v in parameters.items() if k.startswith("simulation.")}
        late = {k: v for k, v in parameters.items() if k not in of_templates | early}
        sweep, problems = set_values(config, of_templates)
        experiment, mismatches = set_values(copy.deepcopy(config.experiment), early)
        problems += mismatches
        if not problems and roles:
            facts = self.facts(experiment.simulation)
            problems += role_problems(config.roles, facts)
            if not problems:
                agents_of = agents_of_roles(config.roles, facts)
                problems += _replace_base_servers(experiment, agents_of, facts)
                for role, name in roles.items():
                    server = sweep.algorithms[name].server(name, agents_of[role])
                    experiment.servers[role] = with_group(server, role)
        for server in experiment.servers.values():
            server.port = 0
        experiment.seed = seed
        experiment.address = ""
        experiment, mismatches = set_values(experiment, late)
        if config.metric.source == "evaluation" and _is_baseline(experiment):
            experiment.stop = StopConfig(env_steps=1)
            experiment.evaluation.interval_env_steps = experiment.checkpoint.best = None
        return experiment, [f"parameters: {p}" for p in (*problems, *mismatches)]


def _is_baseline(config: ExperimentConfig) -> bool:
    """Whether no server learns, so that only the evaluation at the end has to be played."""
    learns = any(not is_fixed(server.algorithm) for server in config.servers.values())
    return not learns and config.evaluation.final_num_episodes > 0


def make_plan(config: SweepConfig, *, is_check: bool = False) -> SweepPlan:
    """Expands a sweep to its trials and resolves them.

    Args:
        config: the sweep.
        is_check: whether the plan is only made to find mistakes: a whole episode is played, and
            servers that are a user's own processes are asked, which takes a while.

    Raises:
        ConfigError: with all problems of the sweep and its trials.
    """
    problems = list(find_problems(config))
    plan = SweepPlan(config, is_check=is_check)
    simulation = config.experiment.simulation
    if not simulation.env:
        problems.append(
            "experiment.simulation.env: is missing; name an experiment under `base`, or give "
            "'package.module:callable' or 'gymnasium:ENV_ID'"
        )
    elif simulation.env == EXTERNAL:
        problems.append(
            "experiment.simulation.env: is external; a sweep starts the simulations of its trials "
            "itself, so give 'package.module:callable' or 'gymnasium:ENV_ID'"
        )
    else:
        try:
            facts = plan.facts(simulation)
            found = list(role_problems(config.roles, facts))
            problems += found
            if config.roles and not found:
                plan.role_assignments = make_role_assignments(
                    config.assignments,
                    agents_of_roles(config.roles, facts),
                    list(config.algorithms),
                    problems,
                )
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    _write_out(plan)
    if not config.address:
        check_gpus(*(one.config for one in plan.resolved))
    return plan


def _write_out(plan: SweepPlan) -> None:
    """Adds the trials and their experiments to a plan."""
    config = plan.config
    seeds = config.all_seeds
    is_table = config.searcher == "random"
    wanted: list[tuple[RoleAssignment, dict[str, Any]]] = []
    for roles in plan.role_assignments:
        parameters = active(config.parameters, set(roles.values()))
        num_samples = config.num_samples if is_table else 1
        wanted += [(roles, values) for values in settings(parameters, num_samples, config.seed)]
    found: dict[str, list[int]] = {}
    for number, (roles, values) in enumerate(wanted):
        try:
            experiment = plan.resolve(roles, values, seeds[0])
            plan.resolved.append(experiment)
            problems = list(_metric_problems(config, experiment))
        except ConfigError as error:
            problems = error.problems
        for problem in problems:
            found.setdefault(problem, []).append(number)
    if plan.is_check and not found:
        found, plan.deferred = ask_own_servers([one.servers for one in plan.resolved])
    if found:
        raise ConfigError([_placed(p, where, wanted) for p, where in found.items()])
    if not is_table:
        return
    num = len(wanted) * len(seeds)
    for seed in seeds:
        for (roles, values), experiment in zip(wanted, plan.resolved, strict=True):
            what = experiment.assignment, roles, values, seed
            plan.trials.append(make_trial(len(plan.trials), num, *what))
            plan.experiments[plan.trials[-1].id] = reseeded(experiment, seed)


def find_trial_warnings(plan: SweepPlan) -> Iterator[str]:
    """Yields each warning of resolved trials that are not finished, once, with these trials."""
    numbers: dict[str, list[str]] = {}
    for trial in plan.trials:
        if not trial.is_finished and trial.id in plan.experiments:
            for sentence in plan.experiments[trial.id].warnings:
                numbers.setdefault(sentence, []).append(trial.id.partition("-")[0])
    for sentence, of in numbers.items():
        which = f"{len(of)} of {len(plan.trials)} trials ({listed(of)})"
        yield f"{'all trials' if len(of) == len(plan.trials) else which}: {sentence}"


def by_setting(trials: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Returns a list of trials for each setting; those of a list differ only in seed."""
    groups: dict[str, list[TrialRecord]] = {}
    for setting, trial in _with_settings(trials):
        groups.setdefault(setting, []).append(trial)
    return list(groups.values())


def _with_settings(trials: Sequence[TrialRecord]) -> Iterator[tuple[str, TrialRecord]]:
    """Yields a key for each trial's setting; values that were drawn twice are two settings."""
    nums: Counter[tuple[str, int]] = Counter()
    for trial in trials:
        drawn = json.dumps([trial.roles, trial.parameters], sort_keys=True)
        nums[drawn, trial.seed] += 1
        yield f"{drawn}, {nums[drawn, trial.seed]}", trial


def keep_trials(plan: SweepPlan, earlier: Sequence[TrialRecord]) -> None:
    """Puts the earlier trials of a resumed sweep into its plan, before the new ones.

    More seeds or samples add trials to the table, and leave the earlier draws as they are.
    """
    wanted = plan.trials or [
        replace(group[0], seed=seed)
        for seed in plan.config.all_seeds
        for group in by_setting(earlier)
        if group[0].assignment
    ]
    known = {(setting, trial.seed): trial for setting, trial in _with_settings(earlier)}
    trials, experiments = list(earlier), {}
    for setting, one in _with_settings(wanted):
        same = known.get((setting, one.seed))
        if same is None:
            what = one.assignment, one.roles, one.parameters, one.seed
            same = make_trial(len(trials), len(wanted), *what)
            trials.append(same)
        if one.id in plan.experiments:
            experiments[same.id] = plan.experiments[one.id]
    plan.trials, plan.experiments = trials, experiments


def make_trial(
    number: int,
    num_trials: int,
    assignment: str,
    roles: RoleAssignment,
    parameters: dict[str, Any],
    seed: int,
) -> TrialRecord:
    """Returns a trial, whose id also names its directory: ``03-qmix-ppo-4f1c0a92b7d3-s1``.

    Args:
        number: the trial's place in the table.
        num_trials: in the table.
        assignment: canonical string; "" if the trial's experiment was refused.
        roles, parameters, seed: see `TrialRecord`.
    """
    name = file_name(assignment) if assignment else "refused"
    trial_id = f"{number:0{len(str(num_trials - 1))}d}-{name}-s{seed}"
    return TrialRecord(trial_id, assignment, roles, parameters, seed)


def _placed(
    problem: str, where: list[int], wanted: list[tuple[RoleAssignment, dict[str, Any]]]
) -> str:
    """Returns a problem, with the settings that have it unless all do."""
    if len(where) == len(wanted):
        return problem
    roles, values = wanted[where[0]]
    shown = ", ".join(f"{key}: {value}" for key, value in (roles | values).items())
    return f"{problem} (in {len(where)} of {len(wanted)} settings, such as {{{shown}}})"


def _metric_problems(config: SweepConfig, experiment: Experiment) -> Iterator[str]:
    metric = config.metric
    yield from unknown_server("metric.of", "name", metric.of, experiment.config, "role or server")
    yield from unknown_metric("metric.name", metric.name, experiment.config)


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
            yield f"roles: {role!r} cannot name a server; use letters, digits, '_' and '-'"
        if role == TOTAL:
            yield f"roles: {role!r} stands for all agents in `metric`; rename the role"
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
                yield (
                    f"roles: agent {agent!r} is in {owner[agent]!r} and {role!r}, and can be in "
                    "only one"
                )
            owner[agent] = role


def _replace_base_servers(
    experiment: ExperimentConfig, agents_of: Mapping[str, list[str]], facts: SimulationFacts
) -> Iterator[str]:
    """Removes the base's servers whose agents are all in roles; yields a sentence per conflict."""
    taken = {agent for agents in agents_of.values() for agent in agents}
    for server_id, server in list(experiment.servers.items()):
        agents, _ = match(server.agents, list(facts.agents))
        rest = [agent for agent in agents if agent not in taken]
        # If all agents are in roles, a server that matches no agent has none left, either.
        if not rest and (agents or len(taken) == len(facts.agents)):
            del experiment.servers[server_id]
        elif len(rest) < len(agents):
            yield (
                f"roles: the base's server {server_id!r} serves agents of a role and "
                f"{listed(rest)}, which no role has; add a role for these"
            )
        elif server_id in agents_of:
            yield f"roles: {server_id!r} is also a server of the base, which stays; rename the role"


def with_group(server: ServerConfig, name: str) -> ServerConfig:
    """Returns a server whose agents are one group, if its algorithm needs groups and it has none.

    A server with an unknown algorithm is returned as it is; `resolve` will report it.
    """
    from muxrl.servers.lookup import find

    with contextlib.suppress(ValueError):
        if not server.groups and find(server.algorithm).configured(server).seating.needs_groups:
            return replace(server, groups={name: server.agents})
    return server
