"""An RLlib `EnvRunner` without an environment, which passes on recorded episodes to RLlib."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import tree
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.env import INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.metrics import (
    NUM_AGENT_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED,
    NUM_EPISODES,
    NUM_MODULE_STEPS_SAMPLED,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.episodes.trajectories import Trajectory

_REWARDS = gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)


class QueuedEnvRunner(EnvRunner):
    """Passes on episodes to RLlib's algorithm, portion by portion.

    The learner's own module acts, in the same process, so that no weights are sent here.

    Args:
        config: RLlib's config, with both spaces.
        **kwargs: for RLlib's `EnvRunner`.
    """

    def __init__(self, config: AlgorithmConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.metrics = MetricsLogger(stats_cls_lookup=config.stats_cls_lookup, root=False)
        # DQN asks the module for states before there is a learner.
        spec = config.get_rl_module_spec(spaces=self.get_spaces(), inference_only=True)
        self.module: Any = spec.build()
        self._portions: deque[tuple[list[SingleAgentEpisode], int]] = deque()

    def put(self, episodes: list[SingleAgentEpisode], env_steps: int, num_portions: int) -> None:
        """Adds episodes for the algorithm to learn from.

        Args:
            episodes: all of them go into the first portion.
            env_steps: number of env steps that they count as.
            num_portions: how often the algorithm calls `sample` before it learns.
        """
        for i in range(num_portions):
            share = env_steps // num_portions + (i < env_steps % num_portions)
            self._portions.append((episodes if i == 0 else [], share))

    def sample(self, **kwargs: Any) -> list[SingleAgentEpisode]:
        if not self._portions:
            raise RuntimeError(
                f"{self.config.algo_class.__name__}.training_step() asks for more episodes than a "
                "server has recorded; it may call sample() as often as RLlib's own does"
            )
        episodes, env_steps = self._portions.popleft()
        num_ended, num_steps = sum(one.is_done for one in episodes), sum(map(len, episodes))
        for name, key, num in (
            (NUM_ENV_STEPS_SAMPLED, (), env_steps),
            (NUM_EPISODES, (), num_ended),
            (NUM_AGENT_STEPS_SAMPLED, (DEFAULT_MODULE_ID,), num_steps),
            (NUM_MODULE_STEPS_SAMPLED, (DEFAULT_MODULE_ID,), num_steps),
        ):
            self.metrics.log_value((name, *key), num, reduce="sum")
            self.metrics.log_value((f"{name}_lifetime", *key), num, reduce="lifetime_sum")
        return episodes

    def get_metrics(self) -> Any:
        return self.metrics.reduce()

    def get_spaces(self) -> dict[str, Any]:
        own = self.config.observation_space, self.config.action_space
        return {INPUT_ENV_SPACES: own, DEFAULT_MODULE_ID: own}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns {}, as there is no state that the algorithm has to know."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Does nothing; see `get_state`."""

    def assert_healthy(self) -> None:
        """Does nothing, as there is no environment that could fail."""


def observed_by_module(observations: np.ndarray, masks: np.ndarray | None) -> Any:
    """Returns observations as an RLModule reads them: a dict with the masks, if there are any."""
    return observations if masks is None else {OBS: observations, ACTION_MASK: masks}


def episode_of(
    one: Trajectory,
    spaces: tuple[gymnasium.Space, gymnasium.Space],
    outputs: dict[str, Any],
    first_state: Sequence[np.ndarray],
    *,
    name: str,
) -> SingleAgentEpisode:
    """Returns a trajectory in RLlib's form.

    Args:
        one: the trajectory.
        spaces: of the module's observations and actions.
        outputs: of the module for each action, by RLlib's columns.
        first_state: the parts of the recurrent state before the first action; () if the module has
            none.
        name: id of the episode; RLlib takes trajectories with the same name for pieces of one
            episode, in order.
    """
    columns: dict[str, Any] = {
        "observations": observed_by_module(one.observations, one.masks),
        "actions": one.actions,
        "rewards": one.rewards.astype(np.float32),
        **outputs,
    }
    num_lookback = 0
    if first_state and one.t > 0:
        # RLlib keeps the state after each step, and begins with that of the step before the piece.
        num_lookback = 1
        columns = tree.map_structure(lambda rows: np.concatenate([rows[:1], rows]), columns)
        for rows, part in zip(tree.flatten(columns[Columns.STATE_OUT]), first_state, strict=True):
            rows[0] = part

    def buffer(rows: Any, space: gymnasium.Space | None = None) -> InfiniteLookbackBuffer:
        made = InfiniteLookbackBuffer(rows, space=space)
        made.lookback = num_lookback  # the constructor miscounts dicts: it takes the number of keys
        return made

    return SingleAgentEpisode(
        id_=name,
        observations=buffer(columns.pop("observations")),
        observation_space=spaces[0],
        infos=[{}] * (len(one) + num_lookback + 1),
        actions=buffer(columns.pop("actions")),
        action_space=spaces[1],
        rewards=buffer(columns.pop("rewards"), _REWARDS),
        extra_model_outputs={key: buffer(rows) for key, rows in columns.items()},
        terminated=one.is_terminated,
        truncated=one.is_truncated,
        t_started=one.t,
        len_lookback_buffer=num_lookback,
    )
