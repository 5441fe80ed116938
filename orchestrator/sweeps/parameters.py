"""Values of config keys: points of grids, and draws that depend on the sweep's seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.sweeps.schema import ParameterConfig

TEMPLATES = "algorithms."
"""Prefix of the keys of templates."""

_ROUNDING = 1e-9
"""Tolerance for rounding of a quotient in floating point."""

# Keys that a sweep sets itself.
_TAKEN = {
    "seed": "use the sweep's `seeds`",
    "name": "each trial gets a name of its own",
    "runs_dir": "trials are written into the sweep's directory",
    "address": "use the sweep's `address`",
}


def given(parameter: ParameterConfig) -> dict[str, list[Any]]:
    """Returns by kind the values or limits that a parameter gives; it should give one kind."""
    return {kind: values for kind, values in vars(parameter).items() if values is not None}


def find_problems(key: str, parameter: ParameterConfig) -> Iterator[str]:
    """Yields a sentence for each mistake in one parameter."""
    at = f"parameters.{key}"
    if key in _TAKEN:
        yield f"{at}: cannot be a parameter; {_TAKEN[key]}"
    found = given(parameter)
    if len(found) != 1:
        many = f"{at}: has {' and '.join(found)}; it can have only one of them"
        none = f"{at}: needs one of {', '.join(vars(parameter))}, such as {{grid: [0.001, 0.0003]}}"
        yield many if found else none
        return
    ((kind, values),) = found.items()
    if kind in ("grid", "choice"):
        if not values:
            yield f"{at}.{kind}: has no values"
        return
    num = 3 if kind == "quniform" else 2
    if len(values) != num:
        wanted = "[low, high, step]" if num == 3 else "[low, high]"
        yield f"{at}.{kind}: must be {wanted}, got {values}"
        return
    if not all(map(math.isfinite, values)) or values[0] >= values[1]:
        yield f"{at}.{kind}: low must be below high, got {values}"
    elif kind == "loguniform" and values[0] <= 0:
        yield f"{at}.{kind}: low must be above 0, got {values[0]}"
    elif kind == "quniform" and not 0 < values[2] <= (values[1] - values[0]) * (1 + _ROUNDING):
        yield f"{at}.{kind}: the step must be above 0 and fit between low and high, got {values[2]}"


def active(
    parameters: Mapping[str, ParameterConfig], templates: set[str]
) -> dict[str, ParameterConfig]:
    """Returns the parameters that apply if these templates are used."""
    return {
        key: parameter
        for key, parameter in parameters.items()
        if not key.startswith(TEMPLATES) or key.split(".")[1] in templates
    }


def settings(
    parameters: Mapping[str, ParameterConfig], num_samples: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yields the values of all parameters: each point of the grids, with each sample of the draws.

    Args:
        parameters: the active ones.
        num_samples: draws for each point of the grids; if nothing is drawn, there is one sample.
        seed: of the draws.
    """
    grids = [[(key, v) for v in p.grid] for key, p in parameters.items() if p.grid is not None]
    drawn = [key for key, p in parameters.items() if p.grid is None]
    for point in product(*grids):
        for sample in range(num_samples if drawn else 1):
            values = dict(point)
            values |= {key: draw(key, parameters[key], sample, seed) for key in drawn}
            yield {key: values[key] for key in parameters}


def draw(key: str, parameter: ParameterConfig, sample: int, seed: int) -> Any:
    """Returns one value of a distribution.

    The value depends on the arguments alone. So it stays the same when other parameters,
    assignments or samples are added, and is equal for every assignment.
    """
    rng = np.random.default_rng(derive_seed(seed, "sample", key, str(sample)))
    ((kind, values),) = given(parameter).items()
    if kind == "choice":
        return values[int(rng.integers(len(values)))]
    if kind == "randint":
        return int(rng.integers(values[0], values[1]))
    low, high = values[:2]
    if kind == "loguniform":
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))
    value = float(rng.uniform(low, high))
    if kind == "quniform":
        first, last = multiples(low, high, values[2])
        value = multiple(min(max(round(value / values[2]), first), last), values[2])
    return value


def multiples(low: float, high: float, step: float) -> tuple[int, int]:
    """Returns the factors of the first and the last multiple of a step within bounds.

    0.3 counts as the third multiple of 0.1, although 0.3 / 0.1 is below 3 in floating point.
    """
    return math.ceil(low / step - _ROUNDING), math.floor(high / step + _ROUNDING)


def multiple(number: int, step: float) -> float:
    """Returns a multiple of a step, rounded to always the same float: 3 of 0.1 are 0.3."""
    return float(f"{number * step:.12g}")
