"""The algorithms that a policy server can train, by name.

A new algorithm is one more entry in `ALGORITHMS`, and the file or folder that it comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import gymnasium

from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.a2c import A2C_ENTRY
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
from muxrl.servers.algorithms.setting_values import AlgorithmProblem
from muxrl.servers.fixed_policies.names import FIXED_NAMES

__all__ = ["ALGORITHMS", "AlgorithmEntry", "AlgorithmProblem", "get_algorithm", "seating_of"]

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


def get_algorithm(name: str) -> AlgorithmEntry:
    """Returns the entry of that name, in upper or lower case.

    Raises:
        AlgorithmProblem: no algorithm that learns has that name; the message suggests one.
    """
    for entry in ALGORITHMS:
        if entry.name.lower() == name.lower():
            return entry
    if name.upper() in REFUSED:
        raise AlgorithmProblem(f"algorithm {name!r} {REFUSED[name.upper()]}")
    known = [*(entry.name for entry in ALGORITHMS), *FIXED_NAMES]
    hint = did_you_mean(name, known, most=2)
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")


def seating_of(observation_spaces: Collection[gymnasium.Space | None]) -> Seating:
    """Returns the seating that modules with these observation spaces were trained with."""
    for seating in dict.fromkeys(entry.seating for entry in ALGORITHMS):
        if any(map(seating.has_made, observation_spaces)):
            return seating
    return Seating()
