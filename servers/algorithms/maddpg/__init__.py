"""MADDPG and MATD3: deterministic actors, critics of the joint action, exploration by noise."""

from muxrl.servers.algorithms.maddpg.maddpg import MADDPG, MADDPGConfig

__all__ = ["MADDPG", "MADDPGConfig"]
