"""What PPO, A2C and MAPPO share: a lean update around their losses."""

from muxrl.servers.algorithms.on_policy.learner import LeanUpdate
from muxrl.servers.algorithms.on_policy.loss import actor_critic_loss, advantages_of_own_actions

__all__ = ["LeanUpdate", "actor_critic_loss", "advantages_of_own_actions"]
