"""The documented script: QMIX by RLlib's own env runner, with a grouped environment."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from muxrl.servers.algorithms.qmix import QMIX

pytestmark = pytest.mark.usefixtures("rllib", "running_ray")


@contextmanager
def build(min_env_steps: int, **settings: Any) -> Iterator[QMIX]:
    from muxrl.experiments.examples import plain_rllib

    importlib.reload(plain_rllib)  # a Ray before this one may have heard of its environment
    changed = (
        plain_rllib.config.copy(copy_frozen=False)
        .training(**settings)
        .reporting(min_sample_timesteps_per_iteration=min_env_steps)
    )
    algo = changed.build_algo()
    try:
        yield algo
    finally:
        algo.stop()


def greedy_return(result: dict[str, Any]) -> float:
    return float(result["evaluation"]["env_runners"]["episode_return_mean"])


def test_the_script_trains_and_evaluates() -> None:
    with build(10, num_episodes_before_learning=4) as algo:
        results = [algo.train() for _ in range(3)]
    assert results[-1]["num_env_steps_sampled_lifetime"] == 30
    # 15 episodes of 2 steps; half an update each from the fourth on.
    assert results[-1]["learners"]["team"]["num_updates"] == 6
    assert all(greedy_return(result) in (0.0, 1.0, 7.0, 8.0) for result in results)


@pytest.mark.learning
@pytest.mark.night
@pytest.mark.timeout(400)
def test_the_script_solves_the_two_step_game() -> None:
    """Rashid et al. 2018, section 5: return 8, held. An untrained network may have it by chance."""
    with build(500) as algo:
        returns = [greedy_return(algo.train()) for _ in range(10)]
    assert returns[-4:] == [8.0] * 4, returns
