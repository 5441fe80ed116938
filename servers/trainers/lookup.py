"""Finds a trainer by its name: an import path, or a name that a package has registered.

A package, muxrl itself too, registers a name in its ``pyproject.toml``:

.. code-block:: toml

    [project.entry-points."muxrl.trainers"]
    mine = "my_package.my_module:Mine"
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from muxrl.servers.agents.seating import TEAMS, Seating
from muxrl.servers.config import EXTERNAL, ServerConfig, ServerPlan, WhileLearning
from muxrl.servers.import_by_name import import_named
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import METHODS, OWN, UNSCALED_AGENTS, TrainerEntry

GROUP = "muxrl.trainers"
EXAMPLE = "my_package.my_module:Mine"


@functools.cache
def registered() -> dict[str, str]:
    """Returns the import paths of all names that installed packages have registered, by name."""
    found = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    return dict(sorted((found | _of_checkout()).items(), key=lambda item: item[0].lower()))


def _of_checkout() -> dict[str, str]:
    """Returns the names that the checkout of muxrl registers; {} if muxrl runs from none.

    Installed metadata may be older than the checkout.
    """
    path = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    own: dict[str, str] = project.get("entry-points", {}).get(GROUP, {})
    return own if project.get("name") == "muxrl" else {}


def registered_name(name: str) -> str:
    """Returns a registered name in its registered upper and lower case; any other unchanged."""
    return next((own for own in registered() if own.lower() == name.lower()), name)


def find_trainer(name: str) -> TrainerEntry | None:
    """Returns the entry of a trainer by its name; None: the name is of another algorithm.

    Any function is taken for one that makes trainers.

    Raises:
        AlgorithmProblem: it cannot be imported, or is neither a trainer nor an RLlib config.
    """
    if name.upper() == EXTERNAL:
        return ExternalEntry()
    path = name if ":" in name else registered().get(registered_name(name), "")
    if not path:
        return None
    if ":" not in name and path.startswith(OWN):
        return TrainerEntry(registered_name(name), path)
    found = import_named("algorithm", path, EXAMPLE)
    is_class = isinstance(found, type)
    if is_class and any(one.__name__ == "AlgorithmConfig" for one in found.__mro__):
        from muxrl.servers.trainers.rllib.entry import entry_of  # imports RLlib

        return entry_of(name, found)
    if any(hasattr(found, method) for method in ("act", "learn")) if is_class else callable(found):
        return TrainerEntry(registered_name(name), found)
    kind = "a class" if is_class else f"an object of {type(found).__name__}"
    raise AlgorithmProblem(
        f"algorithm {name!r} is {kind} that no server can train with: give a class with the "
        f"methods {', '.join(METHODS)}, or a subclass of RLlib's AlgorithmConfig"
    )


@dataclass(frozen=True)
class ExternalEntry(TrainerEntry):
    """A server in another process, of `servers.X.command` or `servers.X.address`.

    The process checks its own settings.
    """

    name: str = EXTERNAL
    source: Any = None
    has_groups: bool = False
    """Whether the config gives the server groups; the process may refuse them."""

    @property
    def summary(self) -> str:
        return "a server in a process of its own (command or address)"

    @property
    def seating(self) -> Seating:
        """Seats with all parts; the process drops those that it does not need, as the state."""
        return TEAMS if self.has_groups else UNSCALED_AGENTS

    @property
    def asks_for_state(self) -> bool:
        """True, since only the process knows."""
        return True

    def configured(self, config: ServerConfig | ServerPlan) -> Self:
        return replace(self, has_groups=bool(config.groups))

    def find_while_learning(self, given: WhileLearning) -> WhileLearning:
        """Returns the config's value, since the process decides."""
        return given

    def settings(self) -> dict[str, Any]:
        return {}

    def find_config_problems(self, config: ServerConfig | ServerPlan) -> Iterator[str]:
        if config.command and config.address:
            yield (
                "has a command and an address: a server that muxrl starts, or one that is there "
                "already; leave out one of them"
            )
        if not config.command and not config.address:
            yield f"is {EXTERNAL}; give the command that starts it, or its address"
        host, colon, port = config.address.rpartition(":")
        if config.address and not (host and colon and port.isdigit()):
            yield f"has the address {config.address!r}; it must look like '127.0.0.1:9950'"

    def find_problems(self, plan: ServerPlan, others: Sequence[Any] = ()) -> Iterator[str]:
        """Yields nothing: the process reports problems when the run begins."""
        yield from ()

    def make_actors(self, *_: Any) -> Actors:
        raise AlgorithmProblem(
            "its policies are a process's own, so only that can act with them: evaluate the run, "
            "or connect to the process"
        )
