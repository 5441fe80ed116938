"""What PPO, A2C and their like share: a lean update around RLlib's losses."""

from muxrl.servers.algorithms.on_policy.learner import LeanUpdate

__all__ = ["LeanUpdate"]
