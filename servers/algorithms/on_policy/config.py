"""What the configs of PPO, A2C, MAPPO and HAPPO have beyond RLlib's PPO, and other defaults."""

from __future__ import annotations

from typing import Literal

from ray.rllib.algorithms.ppo.ppo import PPOConfig as RLlibPPOConfig

from muxrl.servers.algorithms.declared_settings import ActorCriticSettings, Count, Positive


class OnPolicyConfig(ActorCriticSettings, RLlibPPOConfig):
    """RLlib's PPO config, with Adam's epsilon to set, and no clip of the value loss.

    RLlib cuts the squared error of a value at 10: whatever is further than 3.2 from its target has
    no gradient, and is not learned at all where returns are large.
    """

    lambda_: float
    """GAE's lambda; 1: returns up to the end of the batch."""
    optimizer_epsilon: Positive = 1e-5
    """What Adam adds to the root of the mean squared gradient."""
    rollout_fragment_length: int | Literal["auto"]
    """No effect: a server cuts whole batches."""

    def validate(self) -> None:
        # RLlib bounds a minibatch by env steps, but it is of transitions, one for each agent.
        minibatch_size = self.minibatch_size
        self.minibatch_size: int | None = None
        try:
            super().validate()
        finally:
            self.minibatch_size = minibatch_size


class ClippedRatioConfig(OnPolicyConfig):
    """Adds the settings of several updates on a batch, which PPO's ratio allows."""

    clip_param: float
    """Clip range of the probability ratio."""
    minibatch_size: int | None
    """Transitions of a policy in a minibatch, one for each step of an agent; None: the batch."""
    num_epochs: Count
    """Passes over each batch."""
    shuffle_batch_per_epoch: bool
    """Whether new minibatches are drawn for each pass."""
