"""Checks `simulation.parameters`: numbers, schedules, lessons, and ranges to draw from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from muxrl.client.episode_metrics import METRIC_NAMES, RESERVED_METRICS, is_metric_name
from muxrl.orchestrator.config.schema import ExperimentConfig, SimulationConfig
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.setting_values import without_quotes

_FORMS = (
    "a number, a schedule [[0, 1.0], [100000, 3.0]], {low: 1.0, high: 3.0}, {choice: [1, 4]}, "
    "{lessons: [1, 2, 3], next_when: {metric: win, at_least: 0.8, episodes: 50}}, or "
    "{sides: [left, right]}"
)
_NEXT_WHEN = ("metric", "of", "at_least", "at_most", "episodes")


def is_schedule(given: Any) -> bool:
    """Whether a parameter's value is a list, which is a schedule over env steps."""
    return isinstance(given, Sequence) and not isinstance(given, str)


def has_lessons(given: Any) -> bool:
    """Whether a parameter's value is a row of lessons."""
    return isinstance(given, Mapping) and "lessons" in given


def at_the_end(given: Any) -> Any:
    """Returns a parameter's final value: a schedule's last value, the last lesson, or itself."""
    if is_schedule(given):
        return given[-1][1]
    return given["lessons"][-1] if has_lessons(given) else given


def of_evaluations(config: ExperimentConfig) -> dict[str, Any]:
    """Returns the parameters of evaluation episodes, for `muxrl.client.episode_parameters.draw`."""
    ends = {name: at_the_end(given) for name, given in config.simulation.parameters.items()}
    return ends | config.evaluation.parameters


def find_misread(simulation: SimulationConfig) -> Iterator[str]:
    """Yields a sentence for each parameter with which a simulation cannot be reset."""
    for name, given in simulation.parameters.items():
        key = f"simulation.parameters.{name}"
        if not is_metric_name(name) or name in (*simulation.metrics, *RESERVED_METRICS):
            yield (
                f"{key}: cannot have this name: parameters are recorded among the metrics, so the "
                f"name must differ from theirs, and have {METRIC_NAMES}"
            )
        yield from _or_quotes(_value_problems, key, given, simulation)


def find_problems(config: ExperimentConfig) -> Iterator[str]:
    """Yields a sentence for each parameter that is wrong."""
    parameters = config.simulation.parameters
    yield from find_misread(config.simulation)
    for name, given in config.evaluation.parameters.items():
        key = f"evaluation.parameters.{name}"
        if name not in parameters:
            hint = similar_or_known(name, parameters)
            yield f"{key}: simulation.parameters has no parameter of this name{hint}"
        if is_schedule(given) or has_lessons(given):
            yield (
                f"{key}: all evaluations play with the same values, so give a number, "
                "{low, high} or {choice} instead of a schedule or lessons"
            )
        else:
            yield from _or_quotes(_range_problems, key, given)


def _or_quotes(
    find: Callable[..., Iterator[str]], key: str, given: Any, *others: Any
) -> Iterable[str]:
    """Returns the problems that `find` yields; if only quotes are wrong, one on the quotes."""
    problems, (bare, quotes) = list(find(key, given, *others)), without_quotes(given)
    if problems and quotes and not list(find(key, bare, *others)):
        return [f"{key}: {quotes}"]
    return problems


def _value_problems(key: str, given: Any, simulation: SimulationConfig) -> Iterator[str]:
    if is_schedule(given):
        yield from _schedule_problems(key, given)
    elif has_lessons(given):
        yield from _lesson_problems(key, given)
    elif isinstance(given, Mapping) and given.keys() == {"sides"}:
        yield from _side_problems(key, given["sides"], simulation)
    else:
        yield from _range_problems(key, given)


def _schedule_problems(key: str, given: Sequence[Any]) -> Iterator[str]:
    pairs = [one for one in given if isinstance(one, Sequence) and len(one) == 2]
    if len(pairs) < max(1, len(given)) or not all(_is_number(n) for one in pairs for n in one):
        yield f"{key}: a schedule must be a list of pairs [env steps, number], got {given!r}"
        return
    steps = [at for at, _ in pairs]
    if steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
        yield f"{key}: the env steps of a schedule must begin at 0 and increase, got {steps}"


def _range_problems(key: str, given: Any) -> Iterator[str]:
    if _is_number(given):
        return
    keys = set(given) if isinstance(given, Mapping) else set()
    if keys == {"low", "high"} and all(map(_is_number, given.values())):
        if given["low"] > given["high"]:
            yield f"{key}: low is {given['low']:g}, above high, {given['high']:g}"
    elif keys != {"choice"} or not _are_numbers(given["choice"]):
        yield f"{key}: is {given!r}; expected {_FORMS}"


def _side_problems(key: str, sides: Any, simulation: SimulationConfig) -> Iterator[str]:
    if simulation.env == "external" or simulation.respawn == "new_ids":
        yield (
            f"{key}: agents cannot swap sides in an external simulation, or with respawn: "
            "new_ids; let the simulation itself swap them"
        )
    lists = [[side] if isinstance(side, str) else side for side in sides if is_schedule(sides)]
    if len(lists) < 2 or not all(
        is_schedule(agents) and all(isinstance(agent, str) for agent in agents) for agents in lists
    ):
        yield f"{key}.sides: must be two or more agents, or lists of agents, got {sides!r}"


def _lesson_problems(key: str, given: Mapping[str, Any]) -> Iterator[str]:
    lessons, rule = given["lessons"], given.get("next_when")
    if not _are_numbers(lessons) or len(set(lessons)) < len(lessons):
        yield f"{key}.lessons: must be numbers, all different, got {lessons!r}"
    if unknown := given.keys() - {"lessons", "next_when"}:
        yield f"{key}: has the unknown keys {sorted(unknown)}; known are lessons and next_when"
    if not isinstance(rule, Mapping) or "metric" not in rule or rule.keys() - set(_NEXT_WHEN):
        yield (
            f"{key}.next_when: must be a mapping that has metric, and no keys but "
            f"{listed(_NEXT_WHEN)}, got {rule!r}"
        )
        return
    bounds = [rule[side] for side in ("at_least", "at_most") if side in rule]
    if len(bounds) != 1 or not _is_number(bounds[0]):
        yield f"{key}.next_when: needs a number as at_least or at_most, got {dict(rule)}"
    num = rule.get("episodes", 1)
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        yield f"{key}.next_when.episodes: must be a whole number above 0, got {num!r}"


def _are_numbers(given: Any) -> bool:
    return is_schedule(given) and len(given) > 0 and all(map(_is_number, given))


def _is_number(given: Any) -> bool:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return is_number and math.isfinite(given)
