"""Our side: a policy server on loopback, ten environments in one simulation loop."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3
from pettingzoo.utils import BaseParallelWrapper
from torch.optim.optimizer import register_optimizer_step_post_hook

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
    TERMINAL,
    Case,
)
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.orchestrator.supervise.processes import EpisodeSeeds
from muxrl.servers.config import ServerConfig


class TerminalLimits(BaseParallelWrapper):
    """Says that an episode terminates where its time limit ends it: the value after it is 0.

    So does Papoudakis et al.'s (2021) code, EPyMARL.
    """

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """PettingZoo's, without truncations."""
        observations, rewards, terminations, truncations, infos = super().step(actions)
        ends = {agent: terminations[agent] or truncations[agent] for agent in truncations}
        return observations, rewards, ends, dict.fromkeys(truncations, False), infos


def terminal_spread(**kwargs: Any) -> TerminalLimits:
    """Returns the task with terminal time limits; arguments are mpe2's."""
    return TerminalLimits(simple_spread_v3.parallel_env(**kwargs))


def config_of(case: Case, side: str, setting: str, seed: int) -> ExperimentConfig:
    """Returns the experiment of one server, called as the algorithm is in `CASES`."""
    return ExperimentConfig(
        name="benchmarl_spread",
        seed=seed,
        simulation=SimulationConfig(
            env=f"{__name__}:terminal_spread"
            if side == TERMINAL
            else "mpe2.simple_spread_v3:parallel_env",
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


def train(
    algorithm: str, side: str, setting: str, seed: int, env_steps: int, started: float
) -> Run:
    """Trains and evaluates on the way.

    Args:
        algorithm: a key of `CASES`.
        side: one of `OF_OURS`.
        setting: one of its settings.
        seed: of the server and the environments.
        env_steps: budget.
        started: `time.monotonic()` when the process began.
    """
    case = CASES[algorithm]
    config = config_of(case, side, setting, seed)
    meter = Meter(case.has_continuous_actions, case.is_on_policy)
    steps: list[None] = []
    # MAPPO has one optimizer; those with more count their updates themselves.
    counting = register_optimizer_step_post_hook(lambda *_: steps.append(None))
    with serve(config) as served, served.client() as client:
        server = served.servers[algorithm]
        loop = EnvLoop(
            [served.simulation() for _ in range(NUM_ENVS)],
            client,
            seeds=EpisodeSeeds(1_000 * seed),
        )
        setup_s = time.monotonic() - started
        meter.measure(0, functools.partial(_episode, client))
        while loop.num_env_steps < env_steps:
            goal = loop.num_env_steps + INTERVAL_ENV_STEPS
            meter.resume()
            loop.run(should_stop=lambda goal=goal: loop.num_env_steps >= goal)  # type: ignore[misc]
            meter.pause()
            served.check()
            meter.measure(loop.num_env_steps, functools.partial(_episode, client))
        record = server.drain_records()[-1]
    counting.remove()
    (learned,) = record["learner"].values()
    return Run(
        side,
        setting,
        seed,
        {"num_envs": NUM_ENVS, **case.server, **case.settings[setting].ours},
        {name: version(name) for name in ("ray", "torch", "numpy", "mpe2")},
        setup_s,
        int(learned.get("num_updates", len(steps))),
        int(record["env_steps"]),
        meter.points,
        meter.last_returns,
    )


@contextlib.contextmanager
def _episode(client: MultiplexingClient, is_sampled: bool) -> Iterator[Act]:
    """An episode that is never trained on."""
    episode_id = client.start_episode(training_enabled=False, should_explore=is_sampled)

    def act(observations: Observations, state: np.ndarray) -> dict[str, Any]:
        return client.get_action(episode_id, observations, state=state)

    yield act
    client.abort_episode(episode_id, "measured")
