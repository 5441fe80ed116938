"""Our side: a policy server on loopback, ten environments in one simulation loop."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from muxrl.client import MultiplexingClient
from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.studies.beside_benchmarl.measure import (
    INTERVAL_ENV_STEPS,
    Act,
    Meter,
    Observations,
    Run,
    task,
)
from muxrl.experiments.studies.beside_benchmarl.settings import (
    CASES,
    NUM_ENVS,
    OF_OURS,
    Case,
)
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.orchestrator.storage.versions import software_versions
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds
from muxrl.servers.algorithms.torch_trainer import TorchTrainer
from muxrl.servers.config import ServerConfig


def config_of(case: Case, side: str, setting: str, seed: int) -> ExperimentConfig:
    """Returns an experiment with one server, whose id is the algorithm's key in `CASES`."""
    return ExperimentConfig(
        name="benchmarl_spread",
        seed=seed,
        simulation=SimulationConfig(
            env="mpe2.simple_spread_v3:parallel_env",
            kwargs=task(case.has_continuous_actions),
        ),
        servers={
            case.name.lower(): ServerConfig(
                algorithm=case.name,
                agents=["agent_*"],
                settings={**case.settings[setting].ours, **OF_OURS[side]},
                **case.server,
            )
        },
    )


def train(algorithm: str, side: str, setting: str, seed: int, env_steps: int) -> Run:
    """Trains, and evaluates on the way.

    Args:
        algorithm: a key of `CASES`.
        side: one of `OF_OURS`.
        setting: one of the algorithm's settings.
        seed: of the server and the environments.
        env_steps: budget.
    """
    case = CASES[algorithm]
    config = config_of(case, side, setting, seed)
    meter = Meter(case.has_continuous_actions, case.is_on_policy)
    with serve(config) as served, served.client() as client, _steps() as steps:
        server = served.servers[algorithm]
        learning: Any = server.policies._learning
        updating = _timed(learning)
        loop = EnvLoop(
            [served.simulation() for _ in range(NUM_ENVS)],
            client,
            seeds=EpisodeSeeds(1_000 * seed),
        )
        meter.measure(0, functools.partial(_episode, client))
        while loop.num_env_steps < env_steps:
            goal = loop.num_env_steps + INTERVAL_ENV_STEPS
            meter.resume()
            loop.run(should_stop=lambda goal=goal: loop.num_env_steps >= goal)  # type: ignore[misc]
            meter.pause()
            served.check()
            meter.measure(loop.num_env_steps, functools.partial(_episode, client))
        record = server.policies.drain_records()[-1]
    (learned,) = record["learner"].values()
    return Run(
        side,
        setting,
        seed,
        software_versions(config.simulation.env),
        int(learned.get("num_updates", len(steps))),
        int(record["env_steps"]),
        sum(updating),
        meter.points,
    )


@contextlib.contextmanager
def _steps() -> Iterator[list[None]]:
    """Yields a list that grows with each update of MAPPO; other trainers count their updates."""
    update, steps = TorchTrainer.update, list[None]()

    def counted(self: TorchTrainer, *args: Any) -> None:
        steps.append(None)
        update(self, *args)

    TorchTrainer.update = counted  # type: ignore[method-assign, assignment]
    try:
        yield steps
    finally:
        TorchTrainer.update = update  # type: ignore[method-assign]


def _timed(learning: Any) -> list[float]:
    """Returns a list that receives the processor time of each iteration; waiting takes none."""
    train, took = learning.train, []

    def timed() -> Any:
        before = time.thread_time()
        try:
            return train()
        finally:
            took.append(time.thread_time() - before)

    learning.train = timed
    return took


@contextlib.contextmanager
def _episode(client: MultiplexingClient, is_sampled: bool) -> Iterator[Act]:
    """Opens an episode that is never trained on."""
    episode_id = client.start_episode(training_enabled=False, should_explore=is_sampled)

    def act(observations: Observations, state: np.ndarray) -> dict[str, Any]:
        return client.get_action(episode_id, observations, state=state)

    yield act
    client.abort_episode(episode_id, "measured")
