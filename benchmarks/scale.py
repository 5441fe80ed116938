"""Measures many agents, many simulations, large images, and several processes that play.

Each case has one server, in a process as `muxrl launch` starts it, and simulations that cost
nothing, except for the *costly* ones. It plays first without learning, then with it. Two processes
are double buffering: the simulations of one step while those of the other wait.

    python -m benchmarks.scale --seconds 5

Prints for each case env steps and agent steps per second, the median of an exchange, and how much
the server's memory (resident, MiB) grew from the end of a warm-up to the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from benchmarks.step_path import Timed, serving
from gymnasium import spaces

from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.simulations.parallel_game import ParallelGame
from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.servers.config import ServerConfig

_VECTORS = "muxrl.experiments.simulations.zero_cost:ZeroCost"
_IMAGES = "benchmarks.scale:Images"
_COSTLY = "benchmarks.scale:Costly"


class Images(ParallelGame):
    """Every agent sees one of a few frames of noise, Box [84, 84, 4] uint8; rewards are 0.

    Args:
        num_agents: number of agents, which all stay for the whole episode of 100 steps.
    """

    metadata = {"name": "images", "render_modes": []}

    def __init__(self, num_agents: int) -> None:
        agents = [f"agent_{i}" for i in range(num_agents)]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(0, 255, (84, 84, 4), np.uint8)),
            dict.fromkeys(agents, spaces.Discrete(5)),
            spaces.Box(-np.inf, np.inf, (1,), np.float32),
            100,
        )
        self._frames = np.random.default_rng(0).integers(0, 256, (8, 84, 84, 4), np.uint8)

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        return dict.fromkeys(self.agents, 0.0)

    def _observe(self) -> dict[str, Any]:
        return {a: self._frames[(self._t + i) % 8] for i, a in enumerate(self.agents)}

    def state(self) -> np.ndarray:
        """Returns a zero, as the state is not used."""
        return np.zeros(1, np.float32)


class Costly(ZeroCost):
    """A simulation whose step takes a quarter of a millisecond of processor time."""

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        until = time.thread_time() + 0.25e-3
        while time.thread_time() < until:
            pass
        return super()._play(actions)


@dataclass(frozen=True)
class Case:
    """A case: the simulations in each process, the agents, and the algorithm of their server."""

    simulations: int = 1
    agents: int = 6
    env: str = _VECTORS
    algorithm: str = "PPO"
    processes: int = 1

    def __str__(self) -> str:
        what = {_IMAGES: "images", _COSTLY: "costly"}.get(self.env, "vectors")
        played = f"{self.processes} x {self.simulations}"
        return f"{self.algorithm:7}{what:9}{self.agents:5} agents{played:>8}"


CASES = {
    "agents": [Case(agents=n) for n in (6, 60, 600)],
    "simulations": [Case(n) for n in (1, 4, 16, 64)],
    "processes": [Case(n, processes=p) for n, p in ((1, 2), (2, 1), (8, 2), (16, 1))],
    "costly": [Case(n, env=_COSTLY, processes=p) for n, p in ((16, 1), (8, 2), (16, 2), (32, 1))],
    "images": [
        Case(agents=n, env=env, algorithm=algorithm)
        for n in (2, 20)
        for env, algorithm in ((_VECTORS, "RANDOM"), (_IMAGES, "RANDOM"), (_IMAGES, "PPO"))
    ],
}


def play(
    case: Case, address: str, what: Literal["train", "eval"], seconds: float
) -> tuple[float, float]:
    """Plays for some seconds; returns env steps per second and the median of an exchange, ms."""
    kwargs = {"num_agents": case.agents}
    simulations = [make_simulation(case.env, kwargs) for _ in range(case.simulations)]
    with Timed([address], "remote") as client:
        loop = EnvLoop(simulations, client, mode=what, should_explore=True)
        started = time.perf_counter()
        loop.run(should_stop=lambda: time.perf_counter() - started > seconds)
        pace = loop.num_env_steps / (time.perf_counter() - started)
        return pace, 1e3 * float(np.median(client.durations_s))


def resident_mib(pid: int) -> float:
    """Returns the resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def config_of(case: Case) -> ExperimentConfig:
    """Returns a config with one server for all agents, which share a policy."""
    settings = {"train_batch_size_per_learner": 1000, "minibatch_size": 500, "num_epochs": 4}
    return ExperimentConfig(
        name="scale",
        simulation=SimulationConfig(env=case.env, kwargs={"num_agents": case.agents}),
        servers={
            "one": ServerConfig(
                algorithm=case.algorithm,
                agents=["*"],
                settings={} if case.algorithm == "RANDOM" else settings,
            )
        },
    )


def run(case: Case, seconds: float) -> str:
    """Plays a case; returns its line of the table."""
    spawning = multiprocessing.get_context("spawn")
    with (
        serving(config_of(case)) as (server,),
        ProcessPoolExecutor(case.processes, spawning) as pool,
    ):

        def measure(what: Literal["train", "eval"], for_s: float) -> tuple[float, float]:
            jobs = [(case, server.address, what, for_s)] * case.processes
            if case.processes == 1:
                played = list(starmap(play, jobs))
            else:
                played = list(pool.map(play, *zip(*jobs, strict=True)))
            return sum(pace for pace, _ in played), float(np.mean([ms for _, ms in played]))

        learns = case.algorithm != "RANDOM"
        measure("train" if learns else "eval", seconds)  # warms up
        before = resident_mib(server.pid)
        acting, ms = measure("eval", seconds)
        learning = measure("train", seconds)[0] if learns else float("nan")
        grew = resident_mib(server.pid) - before
        return (
            f"{case!s:32}{acting:12,.0f}{acting * case.agents:12,.0f}{ms:10.2f}{learning:12,.0f}"
            f"{before:9.0f}{grew:+8.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of three turns")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    print(f"{'':32}{'env steps/s':>12}{'agent':>12}{'ms':>10}{'learning':>12}{'MiB':>9}{'grew':>8}")
    for name in args.cases:
        for case in CASES[name]:
            print(run(case, args.seconds), f"  load {os.getloadavg()[0]:.0f}", flush=True)


if __name__ == "__main__":
    main()
