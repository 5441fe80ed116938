"""The settings that algorithms on a replay of teams share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from ray.rllib.algorithms.algorithm import Algorithm

from muxrl.servers.algorithms.declared_settings import Check, Count, DeclaredSettings
from muxrl.servers.algorithms.replay.replay import ReplayUnit


class TeamReplayConfig(DeclaredSettings):
    """Settings of a `TeamReplayAlgorithm`. A team is one RLlib agent.

    The replay's settings are named after what it holds, ``batch_size_steps`` or
    ``batch_size_episodes``, so that each algorithm declares its own; `replay_setting` finds them.
    """

    replay_unit: ClassVar[ReplayUnit]
    """What one entry of the replay is."""
    module_settings: ClassVar[tuple[str, ...]] = ("hidden_dim", "obs_agent_id")
    """Settings that the RLModule's ``model_config`` has, too."""

    # One result, and one point in a plot, for about this many env steps. Not by time, so that
    # runs on slow and fast machines report at the same steps.
    min_sample_timesteps_per_iteration = 1_000

    center_rewards: bool = False
    """Whether `standardize_rewards` subtracts the mean, too: for episodes of equal length."""
    gamma = 0.99
    grad_clip: float | None = 10.0
    """Largest norm of the gradient, of each loss by itself; None: no clip."""
    hidden_dim: Count = 64
    """Units of the members' shared network."""
    obs_agent_id: bool = True
    """Whether the members' network reads its member's id, one-hot."""
    standardize_rewards: bool = False
    """Whether rewards are divided by the standard deviation of all rewards stored so far."""
    tau: Annotated[
        float, Check(lambda v: 0.0 < v <= 1.0, "must lie in (0, 1]; 1 copies the networks")
    ] = 1.0
    """How far target networks move towards the others at each update."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.exploration_config: dict[str, Any] = {}
        super().__init__(algo_class=algo_class)

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
        if self.center_rewards and not self.standardize_rewards:
            self._value_error(
                "center_rewards=True: it is a part of standardize_rewards, so set that to true, too"
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

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.module_settings}
        return super()._model_config_auto_includes | own
