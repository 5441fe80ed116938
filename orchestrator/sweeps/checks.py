"""Finds mistakes in a sweep that can be seen before its simulation is made."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.checks import is_file_name, is_label
from muxrl.orchestrator.sweeps.parameters import find_problems as find_parameter_problems
from muxrl.orchestrator.sweeps.parameters import given
from muxrl.orchestrator.sweeps.schema import AlgorithmTemplate, SweepConfig
from muxrl.protocol.suggestions import did_you_mean, similar_or_known
from muxrl.servers.import_by_name import CannotImport, import_by_name

CALLBACK_EXAMPLE = "ray.air.integrations.mlflow:MLflowLoggerCallback"

_SCHEDULERS = ("none", "asha", "median")
_SEARCHERS = ("random", "optuna")
_PBT = (
    "scheduler.kind: pbt is refused: a sweep compares settings at equal budgets, but with pbt a "
    "trial would continue with the weights of another trial; use asha or median, or a league, "
    "whose 'exploit' is population-based training (muxrl league)"
)
# Keys of a template that are set by the role, the sweep, or the trial's machine.
_GIVEN = {
    "agents": "the role names the agents",
    "label": "the algorithm's name in the sweep is its label",
    "port": "trials run at the same time, each on free ports",
}


def find_problems(config: SweepConfig) -> Iterator[str]:
    """Yields a sentence for each thing that is wrong."""
    if not is_file_name(config.name):
        yield (
            f"name: {config.name!r} cannot name a directory; use letters, digits, '_', '-' and '.'"
        )
    for key, parameter in config.parameters.items():
        yield from find_parameter_problems(key, parameter)
        yield from _key_problems(key, config)
    yield from _template_problems(config)
    is_drawn = any(parameter.grid is None for parameter in config.parameters.values())
    if config.num_samples > 1 and not is_drawn and config.searcher == "random":
        yield (
            f"num_samples: is {config.num_samples}, but no parameter is drawn, so all samples "
            "would be the same; leave it out, or list more seeds"
        )
    yield from _tune_problems(config)
    if bool(config.roles) != bool(config.algorithms):
        given, missing = ("roles", "algorithms") if config.roles else ("algorithms", "roles")
        yield f"{missing}: is missing, but {given} are given; an assignment needs both"
    says_assignments = config.assignments != type(config.assignments)()
    if says_assignments and not config.roles:
        yield "assignments: is given, but no roles; name the roles and their agents under `roles`"
    if len(set(config.seeds)) < len(config.seeds):
        yield f"seeds: has a seed twice, {config.seeds}; the second would repeat the same run"


def find_comparison_problems(config: SweepConfig) -> Iterator[str]:
    """Yields a sentence for each parameter whose values `muxrl compare` refuses to compare."""
    for key, parameter in config.parameters.items():
        ((_, values),) = given(parameter).items()
        is_other = key.startswith(("simulation.env", "simulation.kwargs"))
        if is_other and any(value != values[0] for value in values):
            yield (
                f"parameters.{key}: trials that differ in this key have different simulations, "
                "which muxrl compare refuses; it can compare trials that differ in "
                "simulation.parameters, which reset() gets in each episode"
            )


def _key_problems(key: str, config: SweepConfig) -> Iterator[str]:
    at = f"parameters.{key}"
    first, _, rest = key.partition(".")
    if first == "algorithms":
        name = rest.partition(".")[0]
        if name not in config.algorithms:
            hint = similar_or_known(name, config.algorithms, "the sweep has")
            yield f"{at}: there is no algorithm {name!r}{hint}"
    elif first == "base" or first not in {f.name for f in fields(ExperimentConfig)}:
        hint = did_you_mean(first, [f.name for f in fields(ExperimentConfig)])
        yield f"{at}: unknown key {first!r}{hint or '; it must begin with a key of an experiment'}"
    elif first == "servers":
        name = rest.partition(".")[0]
        known_servers = [*config.roles, *config.experiment.servers]
        if name not in known_servers:
            hint = similar_or_known(name, known_servers)
            yield f"{at}: there is no role or server {name!r}{hint}"


def _template_problems(config: SweepConfig) -> Iterator[str]:
    seen: dict[str, str] = {}
    plain = AlgorithmTemplate()
    for name, template in config.algorithms.items():
        if not is_label(name):
            yield (
                f"algorithms: {name!r} cannot be part of an assignment's name; use letters, "
                "digits, '_', '-' and '.'"
            )
        # Labels of assignments are in lower case.
        if name.lower() in seen:
            other = seen[name.lower()]
            yield (
                f"algorithms: {other!r} and {name!r} differ only in upper and lower case; rename "
                "one"
            )
        seen[name.lower()] = name
        for key, reason in _GIVEN.items():
            if getattr(template, key) != getattr(plain, key):
                yield f"algorithms.{name}.{key}: is given, but {reason}; leave it out"


def _callback_problems(config: SweepConfig) -> Iterator[str]:
    for path, arguments in config.callbacks.items():
        try:
            kind = import_by_name(path, CALLBACK_EXAMPLE)
            inspect.signature(kind).bind(**arguments)
        except (CannotImport, TypeError) as error:
            yield f"callbacks: {path}: {error}"


def _tune_problems(config: SweepConfig) -> Iterator[str]:
    scheduler, budget = config.scheduler, config.experiment.stop.env_steps
    if scheduler.kind == "pbt":
        yield _PBT
    elif scheduler.kind not in _SCHEDULERS:
        hint = similar_or_known(scheduler.kind, _SCHEDULERS)
        yield f"scheduler.kind: there is no {scheduler.kind!r}{hint}"
    elif scheduler.kind != "none":
        if budget is None:
            yield (
                f"scheduler.kind: {scheduler.kind} compares trials at equal env steps, so it needs "
                "to know the budget; set experiment.stop.env_steps"
            )
        elif scheduler.grace_env_steps is not None and scheduler.grace_env_steps > budget:
            yield (
                f"scheduler.grace_env_steps: is {scheduler.grace_env_steps}, but trials stop at "
                f"{budget} env steps, so none would ever be ended early"
            )
    yield from _callback_problems(config)
    if config.searcher not in _SEARCHERS:
        hint = similar_or_known(config.searcher, _SEARCHERS)
        yield f"searcher: there is no {config.searcher!r}{hint}"
    elif config.searcher == "optuna":
        from importlib.util import find_spec

        if find_spec("optuna") is None:
            yield "searcher: optuna is not installed; `pip install optuna`, or use random"
        grids = [key for key, parameter in config.parameters.items() if parameter.grid is not None]
        if grids:
            yield (
                f"parameters.{grids[0]}.grid: a grid tries every value, but optuna chooses values "
                "itself; use choice, or searcher: random"
            )
        if not config.parameters:
            yield "searcher: optuna has nothing to choose; give parameters, or use random"
