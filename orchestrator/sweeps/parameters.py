"""Values of config keys: grids, and draws that depend on the sweep's seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.sweeps.schema import ParameterConfig

TEMPLATES = "algorithms."
"""Keys of templates begin with this."""

_ROUNDING = 1e-9
"""Of a quotient in floating point."""

# Keys that a sweep sets itself.
_TAKEN = {
    "seed": "the sweep's `seeds` is for that",
    "name": "trials have names of their own",
    "runs_dir": "trials lie in the sweep's directory",
    "address": "the sweep's `address` is for that",
}


def given(parameter: ParameterConfig) -> dict[str, list[Any]]:
    """Returns the values, or the limits, that a parameter gives, by kind: one, if it is right."""
    return {kind: values for kind, values in vars(parameter).items() if values is not None}


def find_problems(key: str, parameter: ParameterConfig) -> Iterator[str]:
    """Yields a sentence for each thing that is wrong with a parameter in itself."""
    at = f"parameters.{key}"
    if key in _TAKEN:
        yield f"{at}: cannot be a parameter; {_TAKEN[key]}"
    found = given(parameter)
    if len(found) != 1:
        many = f"{at}: says {' and '.join(found)}; only one can be"
        none = f"{at}: says none of {', '.join(vars(parameter))}; such as {{grid: [0.001, 0.0003]}}"
        yield many if found else none
        return
    ((kind, values),) = found.items()
    if kind in ("grid", "choice"):
        if not values:
            yield f"{at}.{kind}: holds no value"
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
    """Returns the parameters that apply where these templates are used."""
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
        parameters: those that are active.
        num_samples: draws for each point of the grids; without anything to draw, one is enough.
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

    It depends on the arguments alone: it stays when other parameters, assignments or samples are
    added, and is the same under every assignment.
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
    """Returns the first and the last multiple of a step within bounds, by their numbers.

    0.3 is the third of 0.1, though 0.3 / 0.1 is below 3 in floating point.
    """
    return math.ceil(low / step - _ROUNDING), math.floor(high / step + _ROUNDING)


def multiple(number: int, step: float) -> float:
    """Returns a multiple of a step, which it is one way only: 3 of 0.1 are 0.3."""
    return float(f"{number * step:.12g}")
