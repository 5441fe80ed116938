"""The value that a user gives a setting: read and judged alone; what is wrong with it is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from muxrl.protocol.suggestions import did_you_mean

ReadValue = Callable[[str, Any, Any], Any]
"""From a setting's name for messages, the value given and the default to the value for RLlib."""


class AlgorithmProblem(ValueError):
    """This algorithm cannot be built with these settings. The sentence says what to change."""


def suggestion(name: str, known: Collection[str]) -> str:
    """Returns the end of a refusal: known names like `name`, or all of them if none is."""
    return did_you_mean(name, known, most=3) or f"; known: {', '.join(sorted(known))}"


def training_arguments(config_class: type) -> set[str]:
    """Returns the names that the `training()` of an RLlib config, and of those above it, takes."""
    methods = [vars(one)["training"] for one in config_class.__mro__ if "training" in vars(one)]
    parameters = [p for m in methods for p in inspect.signature(m).parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_kind(what: str, value: Any, default: Any) -> None:
    """Refuses values that would fail much later, such as YAML's ``1e-3``, which is a string there.

    Raises:
        AlgorithmProblem: `value` is not of the kind of `default`; it begins with `what`.
    """
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise AlgorithmProblem(f"{what} must be true or false, not {value!r}")
    if is_number and isinstance(value, (str, bool)):
        hint = "; in YAML write 1.0e-3, not 1e-3" if _is_float(value) else ""
        raise AlgorithmProblem(f"{what} must be a number, not {value!r}{hint}")
    if isinstance(default, Mapping) and not isinstance(value, Mapping):
        raise AlgorithmProblem(f"{what} must be a mapping of settings, not {value!r}")


def read_count(what: str, value: Any, default: Any) -> int:
    """Returns a whole number above 0.

    Raises:
        AlgorithmProblem: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise AlgorithmProblem(f"{what} must be a whole number from 1 on, not {value!r}")
    return value


def read_share(what: str, value: Any, default: Any) -> float:
    """Returns a number from 0 to 1.

    Raises:
        AlgorithmProblem: it is something else.
    """
    check_kind(what, value, default)
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise AlgorithmProblem(f"{what} must be a number from 0 to 1, not {value!r}")
    return float(value)


def read_limit(what: str, value: Any, default: Any) -> float | None:
    """Returns a number above 0, or None for no limit.

    Raises:
        AlgorithmProblem: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0.0:
        raise AlgorithmProblem(f"{what} must be a number above 0, or null, not {value!r}")
    return float(value)


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return isinstance(value, str)
