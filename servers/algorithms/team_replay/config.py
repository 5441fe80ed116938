"""The settings that algorithms on a replay of teams share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.utils.schedules.scheduler import Scheduler

from muxrl.servers.algorithms.settings import set_given
from muxrl.servers.algorithms.team_replay.replay import ReplayUnit

Schedule = float | list[tuple[int, float]]
"""A number, or ``[(env step, value), ...]`` that begins at step 0."""


class TeamReplayConfig(AlgorithmConfig):
    """Settings of a `TeamReplayAlgorithm`. A team is one RLlib agent.

    The replay's settings are named after what it holds, ``batch_size_steps`` or
    ``batch_size_episodes``, so that each algorithm declares its own; `replay_setting` finds them.

    Attributes:
        replay_unit: what one entry of the replay is.
        needs_positive_counts: names of settings that are whole numbers of at least 1, beside the
            replay's.
    """

    replay_unit: ClassVar[ReplayUnit]
    needs_positive_counts: ClassVar[tuple[str, ...]] = ("hidden_dim",)

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.exploration_config: dict[str, Any] = {}
        super().__init__(algo_class=algo_class)

        # Model.
        self.hidden_dim = 64
        self.obs_agent_id = True

        # Learning.
        self.gamma = 0.99
        self.grad_clip = 10.0
        self.tau = 1.0
        self.standardize_rewards = False

        # One result, and one point in a plot, for about this many env steps. Not by time, so that
        # runs on slow and fast machines report at the same steps.
        self.min_sample_timesteps_per_iteration = 1_000

    def training(
        self,
        *,
        hidden_dim: int = NotProvided,
        obs_agent_id: bool = NotProvided,
        tau: float = NotProvided,
        standardize_rewards: bool = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings.

        Args:
            hidden_dim: Units of the hidden layers of the members' network, and of critics.
            obs_agent_id: Whether the members' network is told which member it acts for (one-hot),
                so that members can differ in spite of the shared network.
            tau: The fraction by which target networks move at every update.
            standardize_rewards: Whether rewards are divided by the standard deviation of all
                rewards so far; see `RewardDeviation`.

        Returns:
            This config.
        """
        return set_given(super().training(**kwargs), locals())

    def replay_setting(self, name: str) -> Any:
        """Returns the value of ``NAME_steps`` or ``NAME_episodes``, whichever there is."""
        return getattr(self, f"{name}_{self.replay_unit}")

    @property
    def updates_setting(self) -> str:
        """The name of the setting that says how many updates a new entry brings."""
        return f"updates_per_{self.replay_unit.removesuffix('s')}"

    def validate(self) -> None:
        super().validate()
        unit = self.replay_unit
        for name in (
            *self.needs_positive_counts,
            f"batch_size_{unit}",
            f"buffer_capacity_{unit}",
            f"num_{unit}_before_learning",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                self._value_error(f"{name}={value!r} must be a whole number of at least 1")
        if not 0.0 < self.tau <= 1.0:
            self._value_error(f"tau={self.tau} must lie in (0, 1]; 1 copies the networks")
        self._check_above_0(self.updates_setting)
        first, capacity = self.num_before_learning, self.replay_setting("buffer_capacity")
        if first > capacity:
            self._value_error(
                f"num_{unit}_before_learning={first} {unit} never fit into "
                f"buffer_capacity_{unit}={capacity}: learning would not begin"
            )
        assert self.algo_class is not None
        algorithm = self.algo_class.__name__
        if self.grad_clip is not None and self.grad_clip_by != "global_norm":
            self._value_error(
                f"grad_clip_by={self.grad_clip_by!r}: {algorithm} clips by 'global_norm' only"
            )
        if self.num_learners > 0:
            self._value_error(
                f"num_learners={self.num_learners}: {algorithm} learns in the algorithm's own "
                "process; set num_learners=0"
            )

    @property
    def num_before_learning(self) -> int:
        """Entries of a module before its first update."""
        num: int = getattr(self, f"num_{self.replay_unit}_before_learning")
        return num

    def model_settings(self) -> Mapping[str, Any]:
        """Returns what the RLModule's ``model_config`` has of these settings."""
        return {"hidden_dim": self.hidden_dim, "obs_agent_id": self.obs_agent_id}

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | dict(self.model_settings())

    def _check_above_0(self, name: str) -> None:
        if not getattr(self, name) > 0.0:
            self._value_error(f"{name}={getattr(self, name)} must be above 0")

    def _check_schedule(self, name: str, highest: float | None = None) -> None:
        """Checks a number or schedule whose values lie in 0..`highest`; None: have no bound."""
        schedule: Schedule = getattr(self, name)
        Scheduler.validate(fixed_value_or_schedule=schedule, setting_name=name, description=name)
        values = (
            [schedule] if isinstance(schedule, int | float) else [value for _, value in schedule]
        )
        if not all(v >= 0.0 and (highest is None or v <= highest) for v in values):
            bounds = "be at least 0" if highest is None else f"stay within 0 and {highest:g}"
            self._value_error(f"{name}={schedule} must {bounds}")
