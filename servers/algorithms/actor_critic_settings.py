"""The settings that PPO, A2C, IMPALA, APPO, MAPPO and HAPPO share."""

from __future__ import annotations

from typing import Literal

from muxrl.servers.algorithms.networks import ModelSettings
from muxrl.servers.trainers.declared_settings import (
    Count,
    Limit,
    NotNegative,
    Positive,
    Schedule,
    Settings,
    Share,
)


class ActorCriticSettings(Settings):
    """What all have that learn a policy and a value from whole batches."""

    model: ModelSettings = ModelSettings()
    """Of its networks."""
    entropy_coeff: Schedule = 0.0
    """Weight of the entropy bonus; a number or a schedule."""
    gamma: Share = 0.99
    """Discount of each step's reward."""
    grad_clip: Limit = None
    """Largest norm of the gradient; None: no clip."""
    grad_clip_by: Literal["value", "norm", "global_norm"] = "global_norm"
    """`value`, `norm` or `global_norm`."""
    lr: Schedule = 5e-5
    """Learning rate; a number or a schedule."""
    min_sample_timesteps_per_iteration: int = 0
    """Env steps per training record, at least."""
    min_time_s_per_iteration: NotNegative | None = None
    """Seconds per training record, at least."""
    train_batch_size: Count = 4_000
    """RLlib's old name of `train_batch_size_per_learner`."""
    train_batch_size_per_learner: Count = 4_000
    """Env steps between two updates."""
    vf_loss_coeff: float = 1.0
    """Weight of the value loss."""

    @property
    def batch_env_steps(self) -> int:
        """Env steps between two updates, under whichever name they were given."""
        is_given = self.train_batch_size != type(self).train_batch_size
        return self.train_batch_size if is_given else self.train_batch_size_per_learner


class OnPolicySettings(ActorCriticSettings):
    """Of those whose policy has played what it learns from."""

    lambda_: Share = 1.0
    """GAE's lambda; 1: returns up to the end of the batch."""
    optimizer_epsilon: Positive = 1e-5
    """What Adam adds to the root of the mean squared gradient."""


class ClippedRatioSettings(OnPolicySettings):
    """Of several updates on a batch, which PPO's ratio allows."""

    clip_param: NotNegative = 0.3
    """Clip range of the probability ratio."""
    minibatch_size: Count | None = 128
    """Transitions of a policy in a minibatch, one for each step of an agent; None: the batch."""
    num_epochs: Count = 30
    """Passes over each batch."""
    shuffle_batch_per_epoch: bool = True
    """Whether new minibatches are drawn for each pass."""
