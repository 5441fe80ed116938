"""The algorithms that a policy server can train, by name or import path.

A new algorithm of muxrl's is one more entry in `ALGORITHMS`, and the file or folder that it comes
from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import gymnasium
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.a2c import A2C_ENTRY
from muxrl.servers.algorithms.brought import entry_of
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.impala import APPO_ENTRY, IMPALA_ENTRY
from muxrl.servers.algorithms.maddpg.maddpg import MADDPG_ENTRY
from muxrl.servers.algorithms.mappo.happo import HAPPO_ENTRY
from muxrl.servers.algorithms.mappo.mappo import MAPPO_ENTRY
from muxrl.servers.algorithms.masac.masac import MASAC_ENTRY
from muxrl.servers.algorithms.off_policy.dqn_and_sac import DQN_ENTRY, SAC_ENTRY
from muxrl.servers.algorithms.ppo import PPO_ENTRY
from muxrl.servers.algorithms.qmix.entry import (
    IQL_ENTRY,
    QMIX_ENTRY,
    QPLEX_ENTRY,
    VDN_ENTRY,
)
from muxrl.servers.fixed_names import FIXED_NAMES
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.lookup import find_trainer, import_brought, no_trainer, registered

__all__ = [
    "ALGORITHMS",
    "AlgorithmEntry",
    "AlgorithmProblem",
    "TrainerEntry",
    "find_entry",
    "get_algorithm",
    "seating_of",
]

ALGORITHMS: tuple[AlgorithmEntry, ...] = (
    *(PPO_ENTRY, A2C_ENTRY, MAPPO_ENTRY, HAPPO_ENTRY),
    *(DQN_ENTRY, SAC_ENTRY),
    *(IMPALA_ENTRY, APPO_ENTRY),
    *(QMIX_ENTRY, VDN_ENTRY, QPLEX_ENTRY, IQL_ENTRY),
    *(MASAC_ENTRY, MADDPG_ENTRY),
)

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
    for entry in ALGORITHMS:
        if entry.name.lower() == name.lower():
            return entry
    if name.upper() in REFUSED:
        raise AlgorithmProblem(f"algorithm {name!r} {REFUSED[name.upper()]}")
    if (found := import_brought(name)) is not None:
        if isinstance(found, AlgorithmEntry):
            return replace(found, name=name)
        if isinstance(found, type) and issubclass(found, AlgorithmConfig):
            return entry_of(name, found, ALGORITHMS)
        raise no_trainer(name, found)
    known = [*(entry.name for entry in ALGORITHMS), *FIXED_NAMES, *registered()]
    hint = did_you_mean(name, known, most=2)
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")


def seating_of(observation_spaces: Collection[gymnasium.Space | None]) -> Seating:
    """Returns the seating that modules with these observation spaces were trained with."""
    for seating in dict.fromkeys(entry.seating for entry in ALGORITHMS):
        if any(map(seating.has_made, observation_spaces)):
            return seating
    return Seating()
