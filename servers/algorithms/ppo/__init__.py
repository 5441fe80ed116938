"""RLlib's PPO with a lean update."""

from muxrl.servers.algorithms.ppo.ppo import PPOConfig

__all__ = ["PPOConfig"]
