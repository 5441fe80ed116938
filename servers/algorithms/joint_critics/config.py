"""The settings that algorithms with critics of the joint action share."""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import NotProvided

from muxrl.servers.algorithms.settings import set_given
from muxrl.servers.algorithms.team_replay.config import TeamReplayConfig

LearningRate = float | list[tuple[int, float]]


class JointCriticConfig(TeamReplayConfig):
    """For teams whose members have continuous actions, on a replay of single steps.

    A team is one RLlib agent with the spaces of a `ContinuousTeamSpec`.
    """

    replay_unit = "steps"

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)

        # Model.
        self.hidden_dim = 128

        # Learning.
        self.actor_lr: LearningRate = 3e-4
        self.critic_lr: LearningRate = 1e-3
        self.tau = 0.005

        # Replay.
        self.batch_size_steps = 256
        self.buffer_capacity_steps = 100_000
        self.num_steps_before_learning = 1_000
        self.updates_per_step = 1.0

        # Each round of the loop has an overhead of about one update.
        self.rollout_fragment_length = 4

    def training(
        self,
        *,
        actor_lr: LearningRate = NotProvided,
        critic_lr: LearningRate = NotProvided,
        batch_size_steps: int = NotProvided,
        buffer_capacity_steps: int = NotProvided,
        num_steps_before_learning: int = NotProvided,
        updates_per_step: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings.

        Args:
            actor_lr: Learning rate of the actor; a number or a schedule.
            critic_lr: Of the critics.
            batch_size_steps: Steps in one update.
            buffer_capacity_steps: Steps that the replay holds, for each module.
            num_steps_before_learning: Steps of a module before its first update.
            updates_per_step: Updates for each new step of a module; may be a fraction.

        Returns:
            This config.
        """
        return set_given(super().training(**kwargs), locals())
