"""Finds an algorithm of any kind by its name."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.fixed_names import FIXED_NAMES
from muxrl.servers.fixed_policies import find_fixed
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.algorithm import Algorithm
from muxrl.servers.trainers.entry import OWN, TrainerEntry
from muxrl.servers.trainers.lookup import find_trainer, registered

# Names that people look for, with the reason why they are refused: RLlib's that make no sense on a
# server, and names that mean another algorithm.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("BC", "MARWIL", "CQL"), "learns from recorded data only; use PPO, DQN or SAC"),
    "DREAMERV3": "is for one agent alone in RLlib, and a server's agents are several to it; use "
    "PPO with use_lstm",
    "MATD3": "is called MADDPG here, whose defaults are MATD3's; use MADDPG",
}


def find(name: str) -> Algorithm:
    """Returns the algorithm of a name, in upper or lower case, or of an import path.

    RLlib is imported only for RLlib's algorithms.

    Raises:
        AlgorithmProblem: nothing has that name (the message suggests one), or the object there
            cannot be imported or cannot learn on a server.
    """
    if fixed := find_fixed(name):
        return fixed()
    if trainer := find_trainer(name):
        return trainer
    if name.upper() in REFUSED:
        raise AlgorithmProblem(f"algorithm {name!r} {REFUSED[name.upper()]}")
    known = [*registered(), *FIXED_NAMES]
    hint = did_you_mean(name, known, most=2)
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")


@functools.cache
def own_algorithms() -> tuple[TrainerEntry, ...]:
    """Returns muxrl's own learning algorithms, by name; those of other libraries are left out."""
    found = (find_trainer(name) for name, path in registered().items() if path.startswith(OWN))
    return tuple(filter(None, found))
