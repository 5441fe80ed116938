"""MAPPO: PPO whose critic sees the global state; HAPPO: the same, one agent after another."""

from muxrl.servers.algorithms.mappo.happo import HAPPO, HAPPOConfig
from muxrl.servers.algorithms.mappo.mappo import MAPPO, MAPPOConfig

__all__ = ["HAPPO", "MAPPO", "HAPPOConfig", "MAPPOConfig"]
