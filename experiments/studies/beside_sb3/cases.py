"""Stable-Baselines3 behind a policy server, and alone; a PPO of one's own. See README.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main
from muxrl.experiments.studies.outcomes import Figures
from muxrl.orchestrator.config import ExperimentConfig, load_config

_ENV = "CartPole-v1"
_NUM_EPISODES = 50
_FIRST_SEED = 10_000
"""Of the evaluation's episodes, as in `Served.evaluate`."""


@dataclass(frozen=True)
class ByServer(Case):
    """An algorithm behind a policy server."""

    algorithm: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1

    def experiment(self, seed: int) -> ExperimentConfig:
        """Returns the experiment; simulations wait for updates, as in one process."""
        return load_config(
            {
                "seed": seed,
                "simulation": {"env": f"gymnasium:{_ENV}", "num_envs_per_process": self.num_envs},
                "servers": {
                    "learner": {
                        "algorithm": self.algorithm,
                        "agents": ["agent"],
                        "settings": dict(self.settings),
                        "while_learning": "wait",
                    }
                },
            }
        )


@dataclass(frozen=True)
class Alone(ByServer):
    """Stable-Baselines3's own loop with the same settings."""

    def train(self, seed: int, env_steps: int) -> dict[int, Figures]:
        """Trains in one process, and plays the same evaluation."""
        import gymnasium
        import stable_baselines3
        from stable_baselines3.common.env_util import make_vec_env

        torch.set_num_threads(1)
        settings = dict(self.settings)
        settings.pop("total_timesteps")
        batch = settings.pop("batch_env_steps")
        name = self.algorithm.removeprefix("SB3_")
        settings |= {"n_steps": batch // self.num_envs} if name == "PPO" else {"train_freq": batch}
        model = getattr(stable_baselines3, name)(
            "MlpPolicy", make_vec_env(_ENV, self.num_envs), seed=seed, device="cpu", **settings
        )
        began = time.monotonic(), time.process_time()
        model.learn(env_steps)
        time_s, cpu_s = time.monotonic() - began[0], time.process_time() - began[1]
        env = gymnasium.make(_ENV)
        returns = []
        for i in range(_NUM_EPISODES):
            observed, _ = env.reset(seed=_FIRST_SEED + i)
            total, is_over = 0.0, False
            while not is_over:
                action, _ = model.predict(observed, deterministic=True)
                observed, reward, terminated, truncated, _ = env.step(action)
                total, is_over = total + float(reward), terminated or truncated
            returns.append(total)
        figures = {"return": fmean(returns), "time_s": round(time_s, 2), "cpu_s": round(cpu_s, 2)}
        return {model.num_timesteps: figures}


def _case(
    kind: type[ByServer], algorithm: str, env_steps: int, num_envs: int, **settings: Any
) -> ByServer:
    if algorithm.startswith("SB3_"):
        settings["total_timesteps"] = env_steps
    return kind(
        "",
        (),
        env_steps=env_steps,
        measure=evaluated(_NUM_EPISODES),
        levels={"random": 22.0, "optimum": 500.0},
        algorithm=algorithm,
        settings=settings,
        num_envs=num_envs,
    )


# Those of RL Baselines3 Zoo for CartPole; of PPO without the schedules.
_DQN: dict[str, Any] = {
    "batch_env_steps": 256,
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "target_update_interval": 10,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
_PPO: dict[str, Any] = {
    "batch_env_steps": 256,
    "learning_rate": 1e-3,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "clip_range": 0.2,
}
_OWN = "muxrl.experiments.studies.beside_sb3.own_ppo:PPO"

# In this order, seed by seed, so that a machine whose speed drifts is fair to all.
TABLE = CaseTable(
    {
        "DQN by a server": _case(ByServer, "SB3_DQN", 20_000, 1, **_DQN),
        "DQN alone": _case(Alone, "SB3_DQN", 20_000, 1, **_DQN),
        "PPO by a server": _case(ByServer, "SB3_PPO", 50_000, 8, **_PPO),
        "PPO alone": _case(Alone, "SB3_PPO", 50_000, 8, **_PPO),
        "built-in PPO": _case(
            ByServer, "PPO", 40_000, 8, train_batch_size_per_learner=2000, minibatch_size=250,
            num_epochs=8, lr=0.0005, use_kl_loss=False,
        ),
        "own PPO": _case(ByServer, _OWN, 40_000, 8),
    },
    seeds=(0, 1, 2, 3, 4),
)  # fmt: skip

if __name__ == "__main__":
    main(TABLE, __doc__)
