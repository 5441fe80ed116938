"""Episodes, batches and a learner of a team, without an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.policy import PolicySpec

from muxrl.servers.algorithms.qmix import QMIXConfig, TeamSpec
from muxrl.servers.algorithms.qmix.learner import QMIXTorchLearner
from muxrl.servers.algorithms.replay.algorithm import as_tensors
from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.rllib.episodes import trajectory_of

GAMMA = 0.9


def play(
    spec: TeamSpec,
    length: int,
    seed: int = 0,
    terminated: bool = True,
    truncated: bool = False,
) -> Trajectory:
    """An episode in which the reward at t is ``100 * seed + t + 1``."""
    rng = np.random.default_rng(seed)

    def seen(t: int) -> Any:
        return spec.observe({"a": rng.normal(size=3), "b": np.full(2, t)}, {"b": [0, 1, 0, 1]})

    observed, acted = spaces_of(spec)
    episode = SingleAgentEpisode(observation_space=observed, action_space=acted)
    episode.add_env_reset(seen(0))
    for t in range(length):
        is_last = t == length - 1
        episode.add_env_step(
            seen(t + 1),
            np.array([t % 2, 3]),
            100.0 * seed + t + 1,
            terminated=terminated and is_last,
            truncated=truncated and is_last,
        )
    return trajectory_of(episode.to_numpy())


def make_learner(spec: TeamSpec, **settings: Any) -> QMIXTorchLearner:
    spaces_of_team = spaces_of(spec)
    config = (
        QMIXConfig()
        .training(**{"gamma": GAMMA, **settings})
        .multi_agent(
            policies={"team": PolicySpec(None, *spaces_of_team)},
            policy_mapping_fn=lambda *args, **kwargs: "team",
        )
        .debugging(seed=0)
    )
    return config.build_learner(spaces={"team": spaces_of_team})


def tensors_of(batch: dict[str, Any]) -> dict[str, Any]:
    return as_tensors(batch, torch.device("cpu"))


def update(learner: QMIXTorchLearner, batch: dict[str, Any]) -> dict[str, Any]:
    learner.learn({"team": tensors_of(batch)}, 0)
    return {key: stats.peek() for key, stats in learner.metrics.reduce()["team"].items()}


def sample_all(*episodes: Trajectory) -> dict[str, Any]:
    """Returns all episodes, in the order of their first rewards."""
    replay = EpisodeReplay(len(episodes), seed=0)
    for episode in episodes:
        replay.add(episode)
    batch = replay.sample(len(episodes))
    order = np.argsort(batch["rewards"][:, 0])
    obs = {key: value[order] for key, value in batch.pop("obs").items()}
    return {"obs": obs, **{name: column[order] for name, column in batch.items()}}
