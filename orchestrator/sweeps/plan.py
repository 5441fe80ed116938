"""From a sweep to its trials: each one an experiment in which every name is known.

All trials are resolved before the first one starts, so that what is wrong with any of them is said
at once. Only with a searcher that learns are later ones not known yet; of each assignment one is
resolved then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from orchestrator.config import (
    ConfigError,
    Experiment,
    ExperimentConfig,
    SimulationConfig,
    SimulationFacts,
    probe,
    resolve,
)
from orchestrator.config.checks import EXTERNAL, is_file_name, is_label
from orchestrator.config.load import set_values
from orchestrator.config.problems import did_you_mean, listed
from orchestrator.config.resolve import match, reseeded
from orchestrator.sweeps.assignments import Cast, make_casts
from orchestrator.sweeps.parameters import TEMPLATES, active, settings
from orchestrator.sweeps.parameters import find_problems as find_parameter_problems
from orchestrator.sweeps.schema import TOTAL, AlgorithmTemplate, SweepConfig
from protocol.assignment import canonical, file_name, server_labels
from servers.config import ServerConfig
from servers.fixed_policies import find_fixed

_SCHEDULERS = ("none", "asha", "median")
_SEARCHERS = ("random", "optuna")
_PBT = (
    "scheduler.kind: pbt is refused: it goes on with one trial's weights under another's settings, "
    "and servers cannot take over weights in mid-run; a network of one assignment would not fit "
    "another one's, and what a trial had learned would no longer be one setting's doing at an "
    "equal budget; use asha or median"
)
# Of a template, what comes from the role, the sweep, or the trial's machine.
_GIVEN = {
    "agents": "they are the role's",
    "label": "it is the template's name",
    "port": "trials run side by side, each on free ports",
}


@dataclass(frozen=True)
class Row:
    """One trial of the table."""

    trial_id: str
    """Names its directory: number, assignment, seed."""
    assignment: str
    """Canonical, by the templates' names."""
    roles: Cast
    parameters: dict[str, Any]
    seed: int


@dataclass
class SweepPlan:
    """A sweep in which every name is known."""

    config: SweepConfig
    rows: list[Row] = field(default_factory=list)
    """In the order in which they start: all of a seed before those of the next, so that a sweep
    that is cut short has compared everything with fewer seeds."""
    experiments: dict[str, Experiment] = field(default_factory=dict)
    """By trial id, of the rows that are resolved."""
    casts: list[Cast] = field(default_factory=list)
    _facts: dict[str, SimulationFacts] = field(default_factory=dict)

    def resolve(self, roles: Cast, parameters: Mapping[str, Any], seed: int) -> Experiment:
        """Returns the experiment of a trial.

        Raises:
            ConfigError: with all that is wrong with it.
        """
        config, problems = self._experiment_config(roles, parameters, seed)
        if problems:
            raise ConfigError(problems)
        return resolve(config, self.facts(config.simulation))

    def config_of(self, row: Row) -> ExperimentConfig:
        """Returns the experiment of a trial before its names are looked up."""
        if row.trial_id in self.experiments:
            return self.experiments[row.trial_id].config
        return self._experiment_config(row.roles, row.parameters, row.seed)[0]

    def assignment(self, roles: Cast, parameters: Mapping[str, Any]) -> str:
        """Returns the canonical string of a trial that is not resolved."""
        config, _ = self._experiment_config(roles, parameters, 0)
        names = list(self.facts(config.simulation).agents)
        labels = server_labels({s: c.label or c.algorithm for s, c in config.servers.items()})
        return canonical({labels[s]: match(c.agents, names)[0] for s, c in config.servers.items()})

    def facts(self, simulation: SimulationConfig) -> SimulationFacts:
        """Returns what a simulation says of itself; it is asked once.

        Raises:
            ConfigError: it cannot be made.
        """
        key = repr(simulation)
        if key not in self._facts:
            self._facts[key] = probe(simulation)
        return self._facts[key]

    def agents_of(self, facts: SimulationFacts) -> dict[str, list[str]]:
        """Returns each role's agents, in the simulation's order."""
        names = list(facts.agents)
        found = {role: set(match(p, names)[0]) for role, p in self.config.roles.items()}
        return {role: [name for name in names if name in agents] for role, agents in found.items()}

    def _experiment_config(
        self, roles: Cast, parameters: Mapping[str, Any], seed: int
    ) -> tuple[ExperimentConfig, list[str]]:
        of_templates = {k: v for k, v in parameters.items() if k.startswith(TEMPLATES)}
        of_experiment = {k: v for k, v in parameters.items() if k not in of_templates}
        # What is swept of the simulation decides who there is, so it goes first.
        early = {k: v for k, v in of_experiment.items() if k.startswith("simulation.")}
        late = {k: v for k, v in of_experiment.items() if k not in early}
        sweep, problems = set_values(self.config, of_templates)
        experiment, misfits = set_values(copy.deepcopy(self.config.experiment), early)
        problems += misfits
        if not problems and roles:
            facts = self.facts(experiment.simulation)
            problems += _role_problems(self.config, facts)
            if not problems:
                agents_of = self.agents_of(facts)
                problems += _make_way(experiment, agents_of, facts)
                for role, name in roles.items():
                    template = sweep.algorithms[name]
                    experiment.servers[role] = _server(role, name, template, agents_of[role])
        for server in experiment.servers.values():
            server.port = 0
        experiment.seed = seed
        experiment.address = ""
        experiment, misfits = set_values(experiment, late)
        return experiment, [f"parameters: {p}" for p in (*problems, *misfits)]


def make_plan(config: SweepConfig) -> SweepPlan:
    """Writes out the trials of a sweep and resolves them.

    Raises:
        ConfigError: with all that is wrong with the sweep or any of its trials.
    """
    problems = list(_sweep_problems(config))
    plan = SweepPlan(config)
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
            found = list(_role_problems(config, facts))
            problems += found
            if config.roles and not found:
                agents_of = plan.agents_of(facts)
                plan.casts = make_casts(
                    config.assignments, agents_of, list(config.algorithms), problems
                )
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    if not config.roles:
        plan.casts = [{}]
    _write_out(plan)
    return plan


def _write_out(plan: SweepPlan) -> None:
    """Fills in the rows and their experiments."""
    config = plan.config
    seeds = config.seeds or [config.experiment.seed]
    is_table = config.searcher == "random"
    wanted: list[tuple[Cast, dict[str, Any]]] = []
    for cast in plan.casts:
        parameters = active(config.parameters, set(cast.values()))
        num_samples = config.num_samples if is_table else 1
        wanted += [(cast, values) for values in settings(parameters, num_samples, config.seed)]
    found: dict[str, list[int]] = {}
    experiments: list[Experiment] = []
    for number, (cast, values) in enumerate(wanted):
        try:
            experiment = plan.resolve(cast, values, seeds[0])
            experiments.append(experiment)
            problems = list(_metric_problems(config, experiment))
        except ConfigError as error:
            problems = error.problems
        for problem in problems:
            found.setdefault(problem, []).append(number)
    if found:
        raise ConfigError([_placed(p, where, wanted) for p, where in found.items()])
    if not is_table:
        return
    width = len(str(len(wanted) * len(seeds) - 1))
    for seed in seeds:
        for (cast, values), resolved in zip(wanted, experiments, strict=True):
            experiment = reseeded(resolved, seed)
            trial_id = name_trial(len(plan.rows), width, experiment.assignment, seed)
            plan.rows.append(Row(trial_id, experiment.assignment, cast, values, seed))
            plan.experiments[trial_id] = experiment


def name_trial(number: int, width: int, assignment: str, seed: int) -> str:
    """Returns a trial's id, which is also a directory's name: ``03-qmix-ppo-4f1c0a92b7d3-s1``."""
    return f"{number:0{width}d}-{file_name(assignment)}-s{seed}"


def _placed(problem: str, where: list[int], wanted: list[tuple[Cast, dict[str, Any]]]) -> str:
    """Says which settings have a problem, where not all of them do."""
    if len(where) == len(wanted):
        return problem
    cast, values = wanted[where[0]]
    shown = ", ".join(f"{key}: {value}" for key, value in (cast | values).items())
    return f"{problem} (in {len(where)} of {len(wanted)} settings, such as {{{shown}}})"


def _sweep_problems(config: SweepConfig) -> Iterator[str]:
    if not is_file_name(config.name):
        yield (
            f"name: {config.name!r} cannot name a directory; use letters, digits, '_', '-' and '.'"
        )
    for key, parameter in config.parameters.items():
        yield from find_parameter_problems(key, parameter)
        yield from _key_problems(key, config)
    yield from _template_problems(config)
    yield from _number_problems(config)
    yield from _tune_problems(config)
    if bool(config.roles) != bool(config.algorithms):
        given, missing = ("roles", "algorithms") if config.roles else ("algorithms", "roles")
        yield f"{missing}: is missing, though there are {given}; an assignment needs both"
    says_assignments = config.assignments != type(config.assignments)()
    if says_assignments and not config.roles:
        yield "assignments: is given, but no roles; name the roles and their agents under `roles`"
    if len(set(config.seeds)) < len(config.seeds):
        yield f"seeds: names one twice, {config.seeds}; the second would be the same run again"


def _key_problems(key: str, config: SweepConfig) -> Iterator[str]:
    at = f"parameters.{key}"
    first, _, rest = key.partition(".")
    if first == "algorithms":
        name = rest.partition(".")[0]
        if name not in config.algorithms:
            hint = did_you_mean(name, config.algorithms)
            known = listed(config.algorithms) or "none"
            yield f"{at}: there is no algorithm {name!r}{hint or f'; the sweep has {known}'}"
    elif first not in {f.name for f in fields(ExperimentConfig)}:
        hint = did_you_mean(first, [f.name for f in fields(ExperimentConfig)])
        yield f"{at}: unknown key {first!r}{hint or '; begin with a key of an experiment'}"
    elif first == "servers":
        name = rest.partition(".")[0]
        known_servers = [*config.roles, *config.experiment.servers]
        if name not in known_servers:
            hint = did_you_mean(name, known_servers) or f"; known are {listed(known_servers)}"
            yield f"{at}: there is no role or server {name!r}{hint}"


def _template_problems(config: SweepConfig) -> Iterator[str]:
    seen: dict[str, str] = {}
    plain = AlgorithmTemplate()
    for name, template in config.algorithms.items():
        if not is_label(name):
            yield (
                f"algorithms: the name {name!r} names assignments; use letters, digits, '_', '-' "
                "and '.'"
            )
        # Labels of assignments are in lower case.
        if name.lower() in seen:
            other = seen[name.lower()]
            yield f"algorithms: {other!r} and {name!r} differ in case alone; rename one"
        seen[name.lower()] = name
        for key, reason in _GIVEN.items():
            if getattr(template, key) != getattr(plain, key):
                yield f"algorithms.{name}.{key}: is given, but {reason}; leave it out"


def _number_problems(config: SweepConfig) -> Iterator[str]:
    above_zero: dict[str, float | None] = {
        "num_samples": config.num_samples,
        "max_concurrent": config.max_concurrent,
        "report_interval_s": config.report_interval_s,
        "scheduler.grace_env_steps": config.scheduler.grace_env_steps,
        "scheduler.min_samples": config.scheduler.min_samples,
    }
    for key, value in above_zero.items():
        if value is not None and not value > 0:
            yield f"{key}: is {value}, must be above 0"
    if not config.calibration_s >= 0:
        yield f"calibration_s: is {config.calibration_s}, must not be negative"
    if not config.scheduler.reduction_factor > 1:
        yield (
            f"scheduler.reduction_factor: is {config.scheduler.reduction_factor}, must be above 1"
        )
    has_draws = any(parameter.grid is None for parameter in config.parameters.values())
    if config.num_samples > 1 and not has_draws and config.searcher == "random":
        yield (
            f"num_samples: is {config.num_samples}, but nothing is drawn, so that all samples "
            "would be the same; leave it out, or list more seeds"
        )


def _tune_problems(config: SweepConfig) -> Iterator[str]:
    scheduler, budget = config.scheduler, config.experiment.stop.env_steps
    if scheduler.kind == "pbt":
        yield _PBT
    elif scheduler.kind not in _SCHEDULERS:
        hint = did_you_mean(scheduler.kind, _SCHEDULERS)
        yield (
            f"scheduler.kind: there is no {scheduler.kind!r}"
            f"{hint or f'; known are {listed(_SCHEDULERS)}'}"
        )
    elif scheduler.kind != "none":
        if budget is None:
            yield (
                f"scheduler.kind: {scheduler.kind} compares trials at equal env steps and needs to "
                "know the budget; set experiment.stop.env_steps"
            )
        elif scheduler.grace_env_steps is not None and scheduler.grace_env_steps > budget:
            yield (
                f"scheduler.grace_env_steps: is {scheduler.grace_env_steps}, but trials stop at "
                f"{budget} env steps; none would ever be ended"
            )
    if config.searcher not in _SEARCHERS:
        hint = did_you_mean(config.searcher, _SEARCHERS)
        yield (
            f"searcher: there is no {config.searcher!r}"
            f"{hint or f'; known are {listed(_SEARCHERS)}'}"
        )
    elif config.searcher == "optuna":
        from importlib.util import find_spec

        if find_spec("optuna") is None:
            yield "searcher: optuna is not installed; `pip install optuna`, or use random"
        grids = [key for key, parameter in config.parameters.items() if parameter.grid is not None]
        if grids:
            yield (
                f"parameters.{grids[0]}.grid: every value of a grid is tried, and optuna chooses; "
                "use choice, or searcher: random"
            )
        if not config.parameters:
            yield "searcher: optuna has nothing to choose; give parameters, or use random"


def _role_problems(config: SweepConfig, facts: SimulationFacts) -> Iterator[str]:
    names = list(facts.agents)
    owner: dict[str, str] = {}
    for role, patterns in config.roles.items():
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


def _make_way(
    experiment: ExperimentConfig, agents_of: Mapping[str, list[str]], facts: SimulationFacts
) -> Iterator[str]:
    """Takes the base's servers out whose agents are all in roles; yields those that are in part."""
    taken = {agent for agents in agents_of.values() for agent in agents}
    for server_id, server in list(experiment.servers.items()):
        agents, _ = match(server.agents, list(facts.agents))
        rest = [agent for agent in agents if agent not in taken]
        # Where everybody is in a role, one that matches nobody has nobody left, either.
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
    """Returns the server of a role; a team algorithm finds its agents in one group."""
    values = {f.name: copy.deepcopy(getattr(template, f.name)) for f in fields(ServerConfig)}
    values |= {"algorithm": template.algorithm or name, "agents": agents, "label": name}
    if not template.groups and _needs_teams(values["algorithm"], template):
        values["groups"] = {role: agents}
    return ServerConfig(**values)


def _needs_teams(algorithm: str, template: AlgorithmTemplate) -> bool:
    """Whether it learns, or has learned, for teams; what is wrong with it is said elsewhere."""
    from servers.algorithms.registry import get_algorithm

    try:
        find = find_fixed(algorithm)
        if find is not None:
            return find(dict(template.settings), dict(template.model)).needs_teams
        return get_algorithm(algorithm).needs_teams
    except ValueError:
        return False


def _metric_problems(config: SweepConfig, experiment: Experiment) -> Iterator[str]:
    if config.metric.of != TOTAL and config.metric.of not in experiment.servers:
        hint = did_you_mean(config.metric.of, [*experiment.servers, TOTAL])
        yield (
            f"metric.of: there is no role or server {config.metric.of!r}"
            f"{hint or f'; known are {listed(experiment.servers)}, {TOTAL}'}"
        )
