"""One PPO update by RLlib 2.60's learner, which has the same loss as ours."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from benchmarks.peers.updates import time_updates
from benchmarks.peers.work import AGENTS, BATCH_ENV_STEPS, HIDDEN, MINIBATCH, PPO_EPOCHS
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.policy import PolicySpec

BOX, DISCRETE = spaces.Box(-1.0, 1.0, (8,), np.float32), spaces.Discrete(5)
_POLICY = "shared"
_STEPS = 100  # of an episode


def make_learner() -> Any:
    """Returns a built learner."""
    model_config = DefaultModelConfig(fcnet_hiddens=list(HIDDEN), vf_share_layers=False)
    config = (
        PPOConfig()
        .multi_agent(
            policies={_POLICY: PolicySpec(None, BOX, DISCRETE)},
            policy_mapping_fn=lambda *args, **kwargs: _POLICY,
        )
        .rl_module(model_config=model_config)
        .debugging(seed=0)
    )
    config.validate()
    module_spec = config.get_multi_rl_module_spec(spaces={_POLICY: (BOX, DISCRETE)})
    learner = config.get_default_learner_class()(config=config, module_spec=module_spec)
    learner.build()
    return learner


def episodes(seed: int) -> list[SingleAgentEpisode]:
    """Returns a batch as RLlib plays it, in plain lists."""
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode(
            observations=list(rng.uniform(-1, 1, (_STEPS + 1, 8)).astype(np.float32)),
            actions=[int(action) for action in rng.integers(5, size=_STEPS)],
            rewards=list(rng.normal(size=_STEPS)),
            extra_model_outputs={
                Columns.ACTION_LOGP: [np.float32(-np.log(5))] * _STEPS,
                Columns.ACTION_DIST_INPUTS: list(np.zeros((_STEPS, 5), np.float32)),
            },
            truncated=True,
            len_lookback_buffer=0,
            agent_id=agent,
            module_id=_POLICY,
            multi_agent_episode_id=str(number),
        )
        for number in range(BATCH_ENV_STEPS // _STEPS)
        for agent in AGENTS
    ]


def update_s(learner: Any, seed: int) -> float:
    """Returns the seconds of one whole update."""
    data = TrainingData(episodes=episodes(seed))
    started = time.perf_counter()
    learner.update(
        training_data=data,
        timesteps={"num_env_steps_sampled_lifetime": 0},
        num_epochs=PPO_EPOCHS,
        minibatch_size=MINIBATCH,
        shuffle_batch_per_epoch=True,
    )
    learner.metrics.reduce()
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(1)
    time_updates(__doc__, make_learner, update_s)
