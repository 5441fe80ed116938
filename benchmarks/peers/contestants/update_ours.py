"""One PPO update of muxrl."""

from __future__ import annotations

import time

import numpy as np
import torch
from benchmarks.peers.updates import time_updates
from benchmarks.peers.work import AGENTS, BATCH_ENV_STEPS, HIDDEN, MINIBATCH, PPO_EPOCHS
from gymnasium import spaces

from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.algorithms.ppo import PPO, PPOSettings
from muxrl.servers.algorithms.settings.model import ModelSettings
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import PolicySpec

_STEPS = 100  # of an episode


def make_trainer() -> PPO:
    """Returns a trainer."""
    box, discrete = spaces.Box(-1.0, 1.0, (8,), np.float32), spaces.Discrete(5)
    settings = PPOSettings(
        model=ModelSettings(fcnet_hiddens=list(HIDDEN), vf_share_layers=False),
        num_epochs=PPO_EPOCHS,
        minibatch_size=MINIBATCH,
    )
    return PPO(PolicySpec("shared", AGENTS, box, discrete, parts={"obs": box}), settings)


def played(seed: int) -> list[Trajectory]:
    """Returns a batch as a server passes it to its trainer, in arrays."""
    rng = np.random.default_rng(seed)
    return [
        Trajectory(
            id=f"{number}-{agent}",
            episode_id=str(number),
            seat_id=agent,
            policy_id="shared",
            observations=rng.uniform(-1, 1, (_STEPS + 1, 8)).astype(np.float32),
            actions=rng.integers(5, size=_STEPS),
            rewards=rng.normal(size=_STEPS),
            outputs={
                LOG_PROB: np.full(_STEPS, -np.log(5), np.float32),
                DISTRIBUTION: np.zeros((_STEPS, 5), np.float32),
            },
            is_truncated=True,
        )
        for number in range(BATCH_ENV_STEPS // _STEPS)
        for agent in AGENTS
    ]


def update_s(trainer: PPO, seed: int) -> float:
    """Returns the seconds of one whole update."""
    trajectories = played(seed)
    started = time.perf_counter()
    trainer.learn(trajectories)
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(1)
    time_updates(__doc__, make_trainer, update_s)
