"""MADDPG on a server."""

from __future__ import annotations

from muxrl.servers.algorithms.joint_critics.entry import joint_critic_entry
from muxrl.servers.algorithms.maddpg.maddpg import MADDPGConfig

MADDPG_ENTRY = joint_critic_entry(
    "MADDPG",
    "deterministic policies for teams, critics of the joint action (Lowe et al. 2017), as MATD3 "
    "(Ackermann et al. 2019)",
    MADDPGConfig,
    samples_actions=False,
)
