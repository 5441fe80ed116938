"""Our side: QMIX behind a policy server on loopback, ten environments in one simulation loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from muxrl.client import MultiplexingClient
from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.studies.beside_benchmarl.measure import (
    INTERVAL_ENV_STEPS,
    NUM_ENVS,
    TASK,
    Act,
    Meter,
    Observations,
    Run,
)
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.runs.in_process import serve
from muxrl.orchestrator.runs.processes import EpisodeSeeds
from muxrl.servers.config import ServerConfig

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "matched": {
        "agent": "mlp",
        "obs_agent_id": False,
        "obs_last_action": False,
        "double_q": False,
        "optimizer_name": "adam",
        "epsilon": [[0, 1.0], [30_000, 0.05]],
        "num_episodes_before_learning": 10,
        "updates_per_episode": 2.0,
    },
}


def train(setting: str, seed: int, env_steps: int, started: float) -> Run:
    """Trains and evaluates on the way.

    Args:
        setting: a key of `SETTINGS`.
        seed: of the server and the environments.
        env_steps: budget.
        started: `time.monotonic()` when the process began.
    """
    config = ExperimentConfig(
        name="benchmarl_spread",
        seed=seed,
        simulation=SimulationConfig(env="mpe2.simple_spread_v3:parallel_env", kwargs=dict(TASK)),
        servers={
            "qmix": ServerConfig(
                algorithm="QMIX",
                agents=["agent_*"],
                groups={"team": ["agent_*"]},
                team_reward="mean",  # BenchMARL's rule
                settings=dict(SETTINGS[setting]),
            )
        },
    )
    meter = Meter()
    with serve(config) as served, served.client() as client:
        server = served.servers["qmix"]
        loop = EnvLoop(
            [served.simulation() for _ in range(NUM_ENVS)],
            client,
            seeds=EpisodeSeeds(1_000 * seed),
        )
        setup_s = time.monotonic() - started
        meter.measure(0, lambda: _episode(client))
        while loop.num_env_steps < env_steps:
            goal = loop.num_env_steps + INTERVAL_ENV_STEPS
            meter.resume()
            loop.run(should_stop=lambda goal=goal: loop.num_env_steps >= goal)  # type: ignore[misc]
            meter.pause()
            served.check()
            meter.measure(loop.num_env_steps, lambda: _episode(client))
        record = server.drain_records()[-1]
    (learned,) = record["learner"].values()
    return Run(
        "muxrl",
        setting,
        seed,
        {"num_envs": NUM_ENVS, "team_reward": "mean", **SETTINGS[setting]},
        {name: version(name) for name in ("ray", "torch", "numpy", "mpe2")},
        setup_s,
        int(learned["num_updates"]),
        int(record["env_steps"]),
        meter.points,
        meter.last_returns,
    )


@contextlib.contextmanager
def _episode(client: MultiplexingClient) -> Iterator[Act]:
    """An episode that is acted greedily and never trained on."""
    episode_id = client.start_episode(training_enabled=False)

    def act(observations: Observations, state: np.ndarray) -> dict[str, int]:
        return client.get_action(episode_id, observations, state=state)

    yield act
    client.abort_episode(episode_id, "measured")
