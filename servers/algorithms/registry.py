"""The algorithms that a policy server can train, by name or import path.

muxrl's own are registered as other packages' are, in ``pyproject.toml``; see
`muxrl.servers.trainers.lookup`. A new one is one more line there, and the file or folder that it
comes from.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.brought import entry_of
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.fixed_names import FIXED_NAMES
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.lookup import (
    find_trainer,
    import_brought,
    no_trainer,
    registered,
    registered_name,
)

__all__ = [
    "AlgorithmEntry",
    "AlgorithmProblem",
    "TrainerEntry",
    "find_entry",
    "get_algorithm",
    "own_algorithms",
    "seating_of",
]

_ROOM = "muxrl.servers.algorithms."
"""Where muxrl's own of RLlib's kind are."""

# Names that people look for, with the reason why there is none: RLlib's that a server has no use
# for, and what another name stands for.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("BC", "MARWIL", "CQL"), "learns from recorded data only; use PPO, DQN or SAC"),
    "DREAMERV3": "is for one agent alone in RLlib, and a server's agents are several to it; use "
    "PPO with use_lstm",
    "MATD3": "is called MADDPG here, whose defaults are MATD3's; use MADDPG",
}


def find_entry(name: str) -> AlgorithmEntry | TrainerEntry:
    """Returns the entry of any algorithm that learns, by name or import path.

    Raises:
        AlgorithmProblem: as `get_algorithm`.
    """
    return find_trainer(name) or get_algorithm(name)


def get_algorithm(name: str) -> AlgorithmEntry:
    """Returns the entry of an algorithm of RLlib's kind, in upper or lower case, or of its path.

    Raises:
        AlgorithmProblem: no algorithm that learns has that name; the message suggests one. Or what
            is there cannot be imported, or cannot learn on a server.
    """
    if (found := import_brought(name)) is not None:
        name = registered_name(name)
        if isinstance(found, AlgorithmEntry):
            return found if found.name == name else replace(found, name=name)
        if isinstance(found, type) and issubclass(found, AlgorithmConfig):
            return entry_of(name, found, own_algorithms())
        raise no_trainer(name, found)
    if name.upper() in REFUSED:
        raise AlgorithmProblem(f"algorithm {name!r} {REFUSED[name.upper()]}")
    known = [*registered(), *FIXED_NAMES]
    hint = did_you_mean(name, known, most=2)
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")


@functools.cache
def own_algorithms() -> tuple[AlgorithmEntry, ...]:
    """Returns the entries of muxrl's own algorithms of RLlib's kind, by name."""
    names = [name for name, path in registered().items() if path.startswith(_ROOM)]
    return tuple(get_algorithm(name) for name in names)


def seating_of(observation_spaces: Collection[Any]) -> Seating:
    """Returns the seating that modules with these observation spaces were trained with.

    They do not tell `shares_policies` and `one_choice`, of which the usual are returned.
    """
    for entry in own_algorithms():
        if any(map(entry.seating.has_made, observation_spaces)):
            usual = entry.seating.forms_teams
            return replace(entry.seating, shares_policies=True, one_choice=usual)
    return Seating()
