"""CartPole through a policy server, beside RLlib's own PPO in one process. See README.md."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main, train
from muxrl.experiments.studies.outcomes import Figures
from muxrl.orchestrator.launch.in_process import Served

_NUM_EPISODES = 100
"""Number of last training episodes whose mean return has to reach the threshold."""


def training_return(served: Served) -> Figures:
    """Measures the mean return of the last training episodes, with sampled actions."""
    (server,) = served.servers.values()
    status = server.status()
    return {"return": status.episode_return_mean or 0.0, "episodes": status.num_episodes}


def with_greedy_return(served: Served) -> Figures:
    """Measures `training_return`, and plays 50 greedy episodes."""
    return {**training_return(served), "greedy": evaluated(50)(served)["return"]}


@dataclass(frozen=True)
class UntilThreshold(Case):
    """A case that ends at the threshold, or when the budget is spent."""

    @property
    def threshold(self) -> float:
        """The mean training return that has to be reached."""
        return self.levels["threshold"]

    def has_reached(self, figures: Figures) -> bool:
        """Whether enough episodes have reached the threshold."""
        return figures["return"] >= self.threshold and figures["episodes"] >= _NUM_EPISODES

    def train(self, seed: int, env_steps: int) -> dict[int, Figures]:
        """Trains behind a policy server."""
        return train(
            self.experiment(seed),
            env_steps,
            self.every,
            self.measure,
            is_enough=self.has_reached,
            measure_last=with_greedy_return,
        )


@dataclass(frozen=True)
class InRllibsProcess(UntilThreshold):
    """RLlib's PPO with RLlib's env runner and the config's settings."""

    def train(self, seed: int, env_steps: int) -> dict[int, Figures]:
        """Trains without a server, and measures after each of RLlib's iterations."""
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
        from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

        from muxrl.servers.algorithms.settings.model import ModelSettings

        experiment = self.experiment(seed)
        (server,) = experiment.servers.values()
        config = PPOConfig().environment("CartPole-v1").training(**server.settings)
        config.rl_module(model_config=DefaultModelConfig(**ModelSettings().values()))
        num_envs = experiment.simulation.num_envs_per_process
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        config.debugging(seed=seed)
        returns: list[float] = []

        # RLlib's running mean is not over the last 100 episodes, whatever its window is.
        def note(*, episode: Any, prev_episode_chunks: Any = (), **_: Any) -> None:
            chunks = [*prev_episode_chunks, episode]  # an episode is cut when a batch is full
            returns.append(float(sum(chunk.get_return() for chunk in chunks)))

        config.callbacks(on_episode_end=note)
        algorithm = config.build_algo()
        measured: dict[int, Figures] = {}
        began_at, steps = time.monotonic(), 0
        while steps < env_steps:
            results = algorithm.train()[ENV_RUNNER_RESULTS]
            steps = int(results[NUM_ENV_STEPS_SAMPLED_LIFETIME])
            measured[steps] = {
                "return": fmean(returns[-_NUM_EPISODES:]) if returns else 0.0,
                "episodes": len(returns),
                "time_s": round(time.monotonic() - began_at, 2),
            }
            if self.has_reached(measured[steps]):
                break
        algorithm.stop()
        return measured


def _case(kind: type[UntilThreshold], algorithm: str, threshold: float) -> UntilThreshold:
    return kind(
        f"cartpole_{algorithm}",
        (),
        env_steps=300_000,
        every=500,
        measure=training_return,
        levels={"random": 22.0, "threshold": threshold, "optimum": 500.0},
    )


# In this order, seed by seed, so that drifts of the machine's speed are fair to all.
TABLE = CaseTable(
    {
        "PPO through a server": _case(UntilThreshold, "ppo", 450.0),
        "PPO in RLlib's own process": _case(InRllibsProcess, "ppo", 450.0),
        "A2C through a server": _case(UntilThreshold, "a2c", 400.0),
    },
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
