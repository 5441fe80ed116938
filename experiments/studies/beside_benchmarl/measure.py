"""The task, and how both sides are measured, with the same code for both.

This module knows no trainer. Two interpreters with different packages import it, so it needs only
numpy and mpe2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3

from muxrl.experiments.studies.beside_benchmarl.settings import EPISODE_STEPS

NUM_AGENTS = 3
# A whole number of both sides' batches (6,000 and 250 env steps) and of ten episodes at a time.
INTERVAL_ENV_STEPS = 6_000
NUM_EVALUATION_EPISODES = 50
FIRST_EVALUATION_SEED = 10_000

Observations = Mapping[str, Any]
Act = Callable[[Observations, np.ndarray], Mapping[str, Any]]
"""Returns actions by agent id, from observations by agent id and the global state."""
NewEpisode = Callable[[bool], AbstractContextManager[Act]]
"""Opens an evaluation episode and yields its `Act`; True: sampled actions, False: greedy."""


def task(has_continuous_actions: bool) -> dict[str, Any]:
    """Returns mpe2's defaults explicitly; half of the reward is the team's."""
    return {
        "N": NUM_AGENTS,
        "local_ratio": 0.5,
        "max_cycles": EPISODE_STEPS,
        "continuous_actions": has_continuous_actions,
    }


def make_env(has_continuous_actions: bool = False) -> Any:
    """Returns the task, a PettingZoo ParallelEnv."""
    return simple_spread_v3.parallel_env(**task(has_continuous_actions))


def evaluate(
    new_episode: NewEpisode,
    has_continuous_actions: bool = False,
    *,
    is_sampled: bool = False,
    num_episodes: int = NUM_EVALUATION_EPISODES,
    first_seed: int = FIRST_EVALUATION_SEED,
) -> np.ndarray:
    """Plays seeded episodes and returns their returns, float64 [num_episodes].

    A return is the sum of the environment's rewards over the episode, as a mean over the agents;
    the team's sum is `NUM_AGENTS` times as large.
    """
    env = make_env(has_continuous_actions)
    returns = np.zeros(num_episodes)
    for i in range(num_episodes):
        observations, _ = env.reset(seed=first_seed + i)
        with new_episode(is_sampled) as act:
            while env.agents:
                observations, rewards, *_ = env.step(act(observations, env.state()))
                returns[i] += sum(rewards.values()) / NUM_AGENTS
    env.close()
    return returns


@dataclass(frozen=True)
class Point:
    """One evaluation after some training; the time does not include evaluations and set-up."""

    env_steps: int
    processor_s: float
    return_mean: float
    """Mean return of greedy episodes."""
    sampled_return_mean: float | None = None
    """For on-policy algorithms: mean return of episodes with sampled actions."""


@dataclass
class Meter:
    """A clock that stands still during evaluations, and their results."""

    has_continuous_actions: bool = False
    is_on_policy: bool = False
    points: list[Point] = field(default_factory=list)
    _processor_s: float = 0.0
    _since: float | None = None

    def resume(self) -> None:
        """Starts the clock, as training goes on."""
        self._since = processor_time_s()

    def pause(self) -> None:
        """Stops the clock, as training stands still."""
        if self._since is not None:
            self._processor_s += processor_time_s() - self._since
            self._since = None

    def measure(self, env_steps: int, new_episode: NewEpisode) -> None:
        """Stops the clock and evaluates; the clock stays stopped until `resume`."""
        self.pause()
        returns = evaluate(new_episode, self.has_continuous_actions)
        sampled = None
        if self.is_on_policy:
            sampled = float(
                evaluate(new_episode, self.has_continuous_actions, is_sampled=True).mean()
            )
        mean = float(returns.mean())
        point = Point(env_steps, self._processor_s, mean, sampled)
        self.points.append(point)
        print(point, flush=True)


@dataclass(frozen=True)
class Run:
    """The settings and results of one side, setting and seed."""

    side: str
    setting: str
    seed: int
    versions: Mapping[str, str | None]
    num_updates: int
    """Gradient steps when they were last counted."""
    num_updates_env_steps: int
    """Env steps at that time."""
    updating_s: float
    """Processor time of learning, from a complete batch to new weights."""
    points: list[Point]


def processor_time_s() -> float:
    """Returns the processor time of this process and its children (a local Ray)."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # the process has ended meanwhile
            continue
        fields = text.rpartition(")")[2].split()  # a name may contain spaces
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        times[pid] = int(fields[11]) + int(fields[12])
    own = os.getpid()
    under = [pid for pid in parents if pid != own and _is_under(pid, own, parents)]
    return time.process_time() + sum(times[pid] for pid in under) / os.sysconf("SC_CLK_TCK")


def _is_under(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
