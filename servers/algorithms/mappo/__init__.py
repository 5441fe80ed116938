"""MAPPO: PPO whose critic sees the global state."""

from muxrl.servers.algorithms.mappo.mappo import MAPPO, MAPPOConfig

__all__ = ["MAPPO", "MAPPOConfig"]
