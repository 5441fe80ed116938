"""MASAC on a server."""

from __future__ import annotations

from muxrl.servers.algorithms.joint_critics.entry import joint_critic_entry
from muxrl.servers.algorithms.masac.masac import MASACConfig

MASAC_ENTRY = joint_critic_entry(
    "MASAC",
    "SAC for teams, with critics of the joint action (Lowe et al. 2017, Haarnoja et al. 2018)",
    MASACConfig,
)
