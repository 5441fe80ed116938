"""The settings that algorithms with critics of the joint action share."""

from __future__ import annotations

from muxrl.servers.algorithms.declared_settings import Count, Positive, Schedule
from muxrl.servers.algorithms.team_replay.config import TeamReplayConfig


class JointCriticConfig(TeamReplayConfig):
    """For teams whose members have continuous actions, on a replay of single steps.

    A team is one RLlib agent with the spaces of `TeamVectors`.
    """

    replay_unit = "steps"

    actor_lr: Schedule = 3e-4
    """Learning rate of the actor; a number or a schedule."""
    batch_size_steps: Count = 256
    """Steps of a team in one update, drawn from the replay."""
    buffer_capacity_steps: Count = 100_000
    """Steps that the replay holds, for each policy."""
    critic_lr: Schedule = 1e-3
    """Learning rate of the critics."""
    hidden_dim: Count = 128
    """Units of both hidden layers, of the actor and of each critic."""
    num_steps_before_learning: Count = 1_000
    """Steps of a policy's teams before its first update."""
    # Each round of the loop has an overhead of about one update.
    rollout_fragment_length: int = 4
    """Env steps that are handed over at a time; the updates for them follow."""
    tau = 0.005
    updates_per_step: Positive = 1.0
    """Updates for each new step of a team; may be a fraction."""
