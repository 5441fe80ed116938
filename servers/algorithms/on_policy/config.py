"""What the configs of PPO, A2C, MAPPO and HAPPO have beyond RLlib's PPO, and other defaults."""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.algorithms.ppo.ppo import PPOConfig as RLlibPPOConfig

from muxrl.servers.algorithms.settings import AlgorithmProblem, set_given

FORMER_DEFAULTS = {"optimizer_epsilon": 1e-8}
"""Of runs that were begun before the setting was there; torch's."""


class OnPolicyConfig(RLlibPPOConfig):
    """RLlib's PPO config, with Adam's epsilon to set, and no clip of the value loss.

    RLlib cuts the squared error of a value at 10: whatever is further than 3.2 from its target has
    no gradient, and is not learned at all where returns are large.
    """

    minibatch_size: int | None

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.optimizer_epsilon = 1e-5
        self.vf_clip_param: float | None = None

    def training(self, *, optimizer_epsilon: float = NotProvided, **kwargs: Any) -> Self:
        """Sets the training related settings.

        Args:
            optimizer_epsilon: What Adam adds to the root of the mean squared gradient. Gradients
                much smaller than it make steps smaller than the learning rate.
            **kwargs: PPO's.

        Returns:
            This config.
        """
        set_given(self, locals())
        super().training(**kwargs)
        return self

    def validate(self) -> None:
        # RLlib bounds a minibatch by env steps, but it is of transitions, one for each agent.
        minibatch_size = self.minibatch_size
        self.minibatch_size = None
        try:
            super().validate()
        finally:
            self.minibatch_size = minibatch_size
        if not self.optimizer_epsilon > 0.0:
            self._value_error(f"optimizer_epsilon={self.optimizer_epsilon!r} must be above 0")


def read_limit(what: str, value: Any, default: Any) -> float | None:
    """Returns a number above 0, or None for no limit.

    Raises:
        AlgorithmProblem: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0.0:
        raise AlgorithmProblem(f"{what} must be a number above 0, or null, not {value!r}")
    return float(value)
