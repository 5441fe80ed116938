"""Times updates of QMIX and MAPPO alone: ours, and EPyMARL's in its own Python environment."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.environments import DEFAULT_FOLDER, environment
from benchmarks.peers.work import AGENTS, EPISODE_STEPS, TEAM_UPDATES, TeamUpdate

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
from muxrl.orchestrator.supervise.process import ONE_THREAD
from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.servers.config import ServerConfig
from muxrl.servers.server import make_policies


def team_config(work: TeamUpdate) -> ExperimentConfig:
    """Returns our experiment with EPyMARL's settings."""
    settings: dict[str, Any] = {
        "agent": "gru" if work.is_recurrent else "mlp",
        "optimizer_name": "adam",
        "num_episodes_before_learning": work.num_stored,
    }
    model: dict[str, Any] = {}
    if work.algorithm == "MAPPO":
        settings = {
            "lr": 0.0005,
            "obs_agent_id": True,
            "num_epochs": work.num_epochs,
            "train_batch_size_per_learner": work.num_episodes * EPISODE_STEPS,
        }
        model = {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}
    return ExperimentConfig(
        name="team_updates",
        simulation=SimulationConfig(env="muxrl.experiments.simulations.zero_cost:ZeroCost"),
        servers={
            "one": ServerConfig(
                algorithm=work.algorithm,
                agents=["*"],
                groups={"team": list(AGENTS)},
                settings=settings,
                model=model,
            )
        },
    )


def team_update_ours(case: str) -> Iterator[float]:
    """Yields for each round the processor time of one update, ms."""
    work = TEAM_UPDATES[case]
    plan = prepare(team_config(work), needs_stop=False).servers["one"]
    policies: Any = make_policies(plan, print)
    rng = np.random.default_rng(0)
    if work.algorithm == "MAPPO":
        while True:
            _play(policies, work.num_episodes, rng)
            before = time.process_time()
            policies._learning.train()
            yield 1e3 * (time.process_time() - before)
    _play(policies, work.num_stored, rng)
    policies._learning.train()
    (trainer,) = policies.acting.learners.values()
    while True:
        before = time.process_time()
        trainer.make_updates(1)
        yield 1e3 * (time.process_time() - before)


def _play(policies: Any, num_episodes: int, rng: np.random.Generator) -> None:
    """Plays whole episodes at the same time."""
    names = [str(rng.integers(2**62)) for _ in range(num_episodes)]
    for name in names:
        policies.store.accept(StartEpisode(name), 0.0)
    for t in range(EPISODE_STEPS):
        rewards = dict.fromkeys(AGENTS, 1.0) if t else {}
        pending = []
        for name in names:
            seen, state = _seen(rng)
            step = Step(name, t, seen, rewards, state=state)
            pending.append(policies.store.accept(step, 0.0))
        blocks = list(dict.fromkeys(step.blocks[0] for step in pending))
        for block, chosen in zip(blocks, policies.acting.act(blocks), strict=True):
            block.finish(*chosen)
        policies.store.finish_frame()
    for name in names:
        seen, state = _seen(rng)
        end = EndEpisode(name, EPISODE_STEPS, True, rewards, final_observations=seen, state=state)
        policies.store.accept(end, 0.0)
    policies.store.finish_frame()


def _seen(rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
    """Returns observations, and the state, which is their concatenation."""
    seen = rng.normal(size=(len(AGENTS), 8)).astype(np.float32)
    return dict(zip(AGENTS, seen, strict=True)), seen.ravel()


def team_update_theirs(case: str) -> Iterator[float]:
    """Does the same as `team_update_ours` with EPyMARL."""
    root = Path(__file__).parents[1]
    command = [environment("epymarl", DEFAULT_FOLDER), "-W", "ignore", "-m"]
    command += ["benchmarks.peers.contestants.update_epymarl", case]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(root)},
    ) as program:  # fmt: skip
        assert program.stdin
        assert program.stdout
        try:
            while True:
                print(file=program.stdin, flush=True)
                line = program.stdout.readline()
                if not line:
                    raise SystemExit("EPyMARL's program ended; it says why above")
                yield float(line)
        finally:
            program.stdin.close()
