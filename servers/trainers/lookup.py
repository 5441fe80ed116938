"""Finds what people bring by its name: an import path, or a name that a package has registered.

A package registers a name in its ``pyproject.toml``:

.. code-block:: toml

    [project.entry-points."muxrl.trainers"]
    mine = "my_package.my_module:Mine"
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

from muxrl.servers.config import EXTERNAL
from muxrl.servers.import_by_name import CannotImport, import_by_name
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.entry import METHODS, TrainerEntry
from muxrl.servers.trainers.external import ExternalEntry

GROUP = "muxrl.trainers"
EXAMPLE = "my_package.my_module:Mine"


@functools.cache
def registered() -> dict[str, str]:
    """Returns the import path of each name that an installed package has registered."""
    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}


def path_of(name: str) -> str:
    """Returns the import path that a name stands for; "" for a name of muxrl's own algorithms."""
    if ":" in name:
        return name
    return next((path for own, path in registered().items() if own.lower() == name.lower()), "")


def import_brought(name: str) -> Any:
    """Returns what a name stands for, None if it is none of people's own.

    Raises:
        AlgorithmProblem: it cannot be imported.
    """
    path = path_of(name)
    if not path:
        return None
    try:
        return import_by_name(path, EXAMPLE)
    except CannotImport as error:
        raise AlgorithmProblem(f"algorithm {error}") from error


def find_trainer(name: str) -> TrainerEntry | None:
    """Returns the entry of a trainer of people's own; None: the name is of another algorithm.

    A function counts as one that makes trainers: what it returns is known when it is called.

    Raises:
        AlgorithmProblem: it cannot be imported.
    """
    if name.upper() == EXTERNAL:
        return ExternalEntry()
    found = import_brought(name)
    is_class = isinstance(found, type)
    if is_class and any(hasattr(found, method) for method in ("act", "learn")):
        return TrainerEntry(name, found)
    return TrainerEntry(name, found) if callable(found) and not is_class else None


def no_trainer(name: str, found: Any) -> AlgorithmProblem:
    """Returns the refusal of what is neither a trainer nor an RLlib config."""
    kind = "a class" if isinstance(found, type) else f"an object of {type(found).__name__}"
    return AlgorithmProblem(
        f"algorithm {name!r} is {kind} that no server can train with: give a class with the "
        f"methods {', '.join(METHODS)}, or a subclass of RLlib's AlgorithmConfig"
    )
