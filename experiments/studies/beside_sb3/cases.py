"""Stable-Baselines3 behind a policy server, and alone; a PPO in one file. See README.md."""

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

_CARTPOLE, _ACROBOT = "CartPole-v1", "Acrobot-v1"
_LEVELS = {_CARTPOLE: {"random": 22.0, "optimum": 500.0}, _ACROBOT: {"random": -499.0}}
_FIRST_SEED = 10_000
"""Seed of the first evaluation episode, as in `Served.evaluate`."""


@dataclass(frozen=True)
class ByServer(Case):
    """An algorithm behind a policy server."""

    env: str = ""
    """Id of a Gymnasium environment, or the import path of a factory."""
    num_episodes: int = 100
    """Episodes of the evaluation."""
    algorithm: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    agents: tuple[str, ...] = ("agent",)
    groups: Mapping[str, list[str]] = field(default_factory=dict)
    normalizes: bool = False
    """Whether observations and rewards are normalised."""

    def experiment(self, seed: int) -> ExperimentConfig:
        """Returns the experiment; simulations wait for updates, as in one process."""
        return load_config(
            {
                "seed": seed,
                "simulation": {
                    "env": self.env if ":" in self.env else f"gymnasium:{self.env}",
                    "num_envs_per_process": self.num_envs,
                },
                "servers": {
                    "learner": {
                        "algorithm": self.algorithm,
                        "agents": list(self.agents),
                        "groups": dict(self.groups),
                        "settings": dict(self.settings),
                        "model": dict(self.model),
                        "while_learning": "wait",
                        "normalize_observations": self.normalizes,
                        "normalize_rewards": self.normalizes,
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
            "MlpPolicy", make_vec_env(self.env, self.num_envs), seed=seed, device="cpu", **settings
        )
        began = time.monotonic(), time.process_time()
        model.learn(env_steps)
        time_s, cpu_s = time.monotonic() - began[0], time.process_time() - began[1]
        env = gymnasium.make(self.env)
        returns = []
        for i in range(self.num_episodes):
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
    kind: type[ByServer],
    env: str,
    algorithm: str,
    env_steps: int,
    num_envs: int,
    num_episodes: int = 50,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ByServer:
    if algorithm.startswith("SB3_"):
        settings["total_timesteps"] = env_steps
    return kind(
        "",
        (),
        env_steps=env_steps,
        measure=evaluated(num_episodes),
        levels=_LEVELS[env],
        env=env,
        num_episodes=num_episodes,
        algorithm=algorithm,
        settings=settings,
        model=model or {},
        num_envs=num_envs,
    )


# Settings of RL Baselines3 Zoo, for PPO without the schedules.
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
_DQN_ACROBOT: dict[str, Any] = {
    "batch_env_steps": 4,
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "target_update_interval": 250,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
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

# In this order, seed by seed, so that drifts of the machine's speed are fair to all.
TABLE = CaseTable(
    {
        "DQN by a server": _case(ByServer, _CARTPOLE, "SB3_DQN", 50_000, 1, 100, **_DQN),
        "DQN alone": _case(Alone, _CARTPOLE, "SB3_DQN", 50_000, 1, 100, **_DQN),
        "Acrobot: DQN by a server": _case(
            ByServer, _ACROBOT, "SB3_DQN", 100_000, 1, 100, **_DQN_ACROBOT
        ),
        "Acrobot: DQN alone": _case(Alone, _ACROBOT, "SB3_DQN", 100_000, 1, 100, **_DQN_ACROBOT),
        "PPO by a server": _case(ByServer, _CARTPOLE, "SB3_PPO", 50_000, 8, **_PPO),
        "PPO alone": _case(Alone, _CARTPOLE, "SB3_PPO", 50_000, 8, **_PPO),
        "built-in PPO": _case(
            ByServer, _CARTPOLE, "PPO", 40_000, 8, train_batch_size_per_learner=2000,
            minibatch_size=250, num_epochs=8, lr=0.0005, use_kl_loss=False,
            model={"fcnet_hiddens": [256, 256]},
        ),
        "own PPO": _case(ByServer, _CARTPOLE, _OWN, 40_000, 8),
    },
    seeds=(0, 1, 2, 3, 4),
)  # fmt: skip

if __name__ == "__main__":
    main(TABLE, __doc__)
