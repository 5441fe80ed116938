"""What learners of teams do around their losses: count updates, and move targets by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER
from ray.rllib.core.rl_module.apis import TargetNetworkAPI

from muxrl.servers.algorithms.replay.learner import ReplayLearner

NUM_UPDATES = "num_updates"
_NUM_UPDATES_STATE = "num_updates_per_module"


class TeamReplayLearner(ReplayLearner):
    """Without losses; it stands before RLlib's learner among the bases of one that has them.

    Metrics of each module: ``num_updates``, and for each optimizer the gradient's norm before
    clipping, ``grad_norm`` or ``NAME_grad_norm``.
    """

    def build(self) -> None:
        if self._is_built:
            return
        super().build()
        self._num_updates = dict.fromkeys(self.module.keys(), 0)
        self.module.foreach_module(lambda _, module: module.make_target_networks())

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI]

    def norm_metric(self, optimizer_name: str) -> str:
        return "grad_norm" if optimizer_name == DEFAULT_OPTIMIZER else f"{optimizer_name}_grad_norm"

    def move_targets(self, updated: Iterable[str], env_steps: int) -> None:
        for module_id in updated:
            config = self.config.get_config_for_module(module_id)
            self._num_updates[module_id] += 1
            self.metrics.log_value((module_id, NUM_UPDATES), 1, reduce="lifetime_sum")
            if self.should_move_targets(self._num_updates[module_id], config):
                self.follow(module_id, config.tau)

    def should_move_targets(self, num_updates: int, config: AlgorithmConfig) -> bool:
        """Returns whether targets move after the update of a module that has had so many."""
        return True

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """RLlib's state, which has the target networks in it, and the number of updates."""
        state = super().get_state(components, not_components=not_components, **kwargs)
        state[_NUM_UPDATES_STATE] = dict(self._num_updates)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if _NUM_UPDATES_STATE in state:
            self._num_updates.update(state[_NUM_UPDATES_STATE])
