"""Built-in algorithms on tasks whose results others have published. See README.md."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any

import gymnasium
import numpy as np

from muxrl.experiments.simulations.foraging import Foraging
from muxrl.experiments.simulations.spread import Spread
from muxrl.experiments.studies.beside_sb3.cases import Alone, ByServer
from muxrl.experiments.studies.case_table import CaseTable, main
from muxrl.experiments.studies.outcomes import Figures
from muxrl.orchestrator.launch.in_process import Served

NUM_EPISODES = 100
RANDOM = {
    "CartPole": 20.2,
    "Acrobot": -498.7,
    "MountainCar": -200.0,
    "Pendulum": -1181.6,
    "MountainCarContinuous": -33.3,
    "MountainCarContinuous, held actions": 67.7,
    "CartPole without velocities": 20.2,
    "simple_spread": -237.0,
    "foraging": 0.23,
}
"""By task: the mean return of the algorithm RANDOM in the same episodes."""


def cart_pole_without_velocities() -> Any:
    """Returns CartPole whose observation has only the positions of cart and pole."""
    env = gymnasium.make("CartPole-v1")
    seen = env.observation_space
    assert isinstance(seen, gymnasium.spaces.Box)
    space = gymnasium.spaces.Box(seen.low[::2], seen.high[::2])
    return gymnasium.wrappers.TransformObservation(env, lambda observed: observed[::2], space)


class HeldActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action sixteen times, or until the episode ends."""

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(16):
            observed, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observed, total, terminated, truncated, info


def mountain_car_with_held_actions() -> Any:
    """Returns MountainCarContinuous with held actions, so that independent noise finds the goal."""
    return HeldActions(gymnasium.make("MountainCarContinuous-v0"))


class FirstForaging(Foraging):
    """EPyMARL's `lbforaging:Foraging-8x8-2p-3f-v2` of 25 steps, after which it terminates.

    Version 1 of the package drew an apple's level below the sum of the agents' levels (at least 1).
    """

    def __init__(self) -> None:
        super().__init__("Foraging-8x8-2p-3f-v3", max_episode_steps=25)
        game: Any = self.unwrapped
        spawn = game.spawn_food

        def spawn_food(num: int, min_levels: Any, max_levels: Any) -> None:
            spawn(num, min_levels, np.maximum(min_levels, max_levels - 1))

        game.spawn_food = spawn_food

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, is_eaten, is_late, info = super().step(action)
        return observations, rewards, is_eaten or is_late, False, info


class EndedSpread(Spread):
    """simple_spread that terminates after 25 steps, as EPyMARL treats it."""

    is_cut = False


def measure(served: Served) -> Figures:
    """Plays greedy episodes; `std` is the standard deviation of their returns."""
    returns = [sum(result.returns.values()) for result in served.evaluate(NUM_EPISODES)]
    return {"return": fmean(returns), "std": pstdev(returns)}


def measure_sampled(served: Served) -> Figures:
    """Plays episodes with sampled actions, as EPyMARL tests actor-critics, and greedy episodes."""
    results = served.evaluate(NUM_EPISODES, should_explore=True)
    sampled = fmean(sum(result.returns.values()) for result in results)
    return {"return": sampled, "greedy": measure(served)["return"]}


def measure_spread(served: Served) -> Figures:
    """Plays as `measure`, and converts returns to EPyMARL's unit.

    There an agent's reward is twice as large, and each agent touches itself in each of 25 steps.
    """
    returns = [
        2.0 * sum(result.returns.values()) - 75.0 for result in served.evaluate(NUM_EPISODES)
    ]
    return {"return": fmean(returns), "std": pstdev(returns)}


def _case(
    task: str,
    env: str,
    algorithm: str,
    env_steps: int,
    published: float,
    settings: Mapping[str, Any],
    model: Mapping[str, Any],
    *,
    num_envs: int = 1,
    every: int | None = None,
    normalizes: bool = False,
) -> ByServer:
    return ByServer(
        "",
        (),
        env_steps=env_steps,
        measure=measure,
        every=every,
        levels={"random": RANDOM[task], "published": published},
        env=env,
        algorithm=algorithm,
        settings=settings,
        model=model,
        num_envs=num_envs,
        normalizes=normalizes,
    )


def _falling(lr: float, env_steps: int) -> list[list[float]]:
    return [[0, lr], [env_steps, 0.0]]


# The settings of RL Baselines3 Zoo, except for the clip range, which falls there.
_PPO = {
    "train_batch_size_per_learner": 256, "minibatch_size": 256, "num_epochs": 20,
    "lr": _falling(1e-3, 100_000), "gamma": 0.98, "lambda_": 0.8, "clip_param": 0.2,
    "vf_loss_coeff": 0.5, "grad_clip": 0.5, "use_kl_loss": False,
}  # fmt: skip
# The zoo's settings, except for its gSDE.
_PPO_PENDULUM = {
    "train_batch_size_per_learner": 4096, "minibatch_size": 64, "num_epochs": 10, "lr": 1e-3,
    "gamma": 0.9, "lambda_": 0.95, "clip_param": 0.2, "vf_loss_coeff": 0.5, "grad_clip": 0.5,
    "use_kl_loss": False,
}  # fmt: skip
# CleanRL's settings, except for the clip of the value.
_PPO_ACROBOT = {
    "train_batch_size_per_learner": 512, "minibatch_size": 128, "num_epochs": 4,
    "lr": _falling(2.5e-4, 500_000), "lambda_": 0.95, "clip_param": 0.2, "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.5, "grad_clip": 0.5, "use_kl_loss": False,
}  # fmt: skip
# The zoo's settings, except for its RMSProp.
_A2C = {
    "train_batch_size_per_learner": 40, "lr": 7e-4, "vf_loss_coeff": 0.5, "grad_clip": 0.5,
    "entropy_coeff": 0.0,
}  # fmt: skip
_RELU = {"fcnet_activation": "relu", "fcnet_hiddens": [256, 256]}
_Q_NETWORK = {**_RELU, "head_fcnet_hiddens": []}


def _dqn(
    lr: float, batch: int, capacity: int, first: int, target: int, every: int, updates: int,
    epsilon_until: int, epsilon: float, gamma: float = 0.99,
) -> dict[str, Any]:  # fmt: skip
    """Returns settings of Stable-Baselines3's DQN, which is neither double nor dueling."""
    return {
        "lr": lr, "train_batch_size_per_learner": batch, "gamma": gamma, "grad_clip": 10.0,
        "replay_buffer_config": {"capacity": capacity}, "double_q": False, "dueling": False,
        "num_steps_sampled_before_learning_starts": first, "target_network_update_freq": target,
        "rollout_fragment_length": every, "training_intensity": batch * updates / every,
        "epsilon": [[0, 1.0], [epsilon_until, epsilon]], "td_error_loss_fn": "huber",
    }  # fmt: skip


def _alone(task: str, env_steps: int, published: float, every: int, **settings: Any) -> Alone:
    """Returns Stable-Baselines3's DQN in its own loop with the same settings."""
    return Alone(
        "",
        (),
        env_steps=env_steps,
        measure=measure,
        levels={"random": RANDOM[task], "published": published},
        env={"CartPole": "CartPole-v1", "MountainCar": "MountainCar-v0"}[task],
        algorithm="SB3_DQN",
        settings={
            "total_timesteps": env_steps, "batch_env_steps": every, "gradient_steps": every // 2,
            "learning_starts": 1_000, "policy_kwargs": {"net_arch": [256, 256]}, **settings,
        },
    )  # fmt: skip


# EPyMARL's settings, except that states are bounded.
_QMIX = {
    "optimizer_name": "adam", "lr": 5e-4, "standardize_rewards": True, "center_rewards": True,
    "obs_last_action": False,
}  # fmt: skip
# From EPyMARL's log of this task, but with GAE instead of 5-step returns and a target network.
_MAPPO = {
    "train_batch_size_per_learner": 250, "num_epochs": 4, "lr": 5e-4, "lambda_": 0.8,
    "entropy_coeff": 0.01, "clip_param": 0.2, "vf_clip_param": None, "huber_delta": None,
    "normalize_values": True, "obs_agent_id": True,
}  # fmt: skip
_MEMBERS = ("agent_0", "agent_1", "agent_2")
_CARTPOLE, _ACROBOT = "gymnasium:CartPole-v1", "gymnasium:Acrobot-v1"
_HERE = "muxrl.experiments.studies.published.cases"
_WITHOUT_VELOCITIES = f"{_HERE}:cart_pole_without_velocities"
_HELD_ACTIONS = f"{_HERE}:mountain_car_with_held_actions"


CASES = {
        "CartPole: PPO": _case(
            "CartPole", _CARTPOLE, "PPO", 100_000, 500.0, _PPO, {}, num_envs=8
        ),
        "CartPole: DQN": _case(
            "CartPole", _CARTPOLE, "DQN", 50_000, 500.0,
            _dqn(2.3e-3, 64, 100_000, 1_000, 10, 256, 128, 8_000, 0.04), _Q_NETWORK,
        ),
        "Pendulum: SAC": _case(
            "Pendulum", "gymnasium:Pendulum-v1", "SAC", 20_000, -157.0,
            {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3,
             "num_steps_sampled_before_learning_starts": 100},
            {**_RELU, "fusionnet_hiddens": [256]},
        ),
        "Pendulum: PPO": _case(
            "Pendulum", "gymnasium:Pendulum-v1", "PPO", 100_000, -172.2, _PPO_PENDULUM, {},
            num_envs=4,
        ),
        "Pendulum: PPO, defaults": _case(
            "Pendulum", "gymnasium:Pendulum-v1", "PPO", 100_000, -172.2, {}, {}, num_envs=4
        ),
        "CartPole: A2C": _case(
            "CartPole", _CARTPOLE, "A2C", 500_000, 500.0, _A2C, {}, num_envs=8, every=100_000
        ),
        "Acrobot: PPO": _case(
            "Acrobot", _ACROBOT, "PPO", 500_000, -86.0, _PPO_ACROBOT, {}, num_envs=4,
            every=100_000,
        ),
        "MountainCar: DQN": _case(
            "MountainCar", "gymnasium:MountainCar-v0", "DQN", 120_000, -100.8,
            _dqn(4e-3, 128, 10_000, 1_000, 600, 16, 8, 24_000, 0.07, 0.98), _Q_NETWORK,
        ),
        # In the zoo the layers come after the LSTM.
        "CartPole without velocities: PPO, LSTM": _case(
            "CartPole without velocities", _WITHOUT_VELOCITIES, "PPO", 100_000, 500.0, _PPO,
            {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 32}, num_envs=8,
            normalizes=True,
        ),
        "CartPole: DQN, Stable-Baselines3": _alone(
            "CartPole", 50_000, 500.0, 256, learning_rate=2.3e-3, batch_size=64,
            buffer_size=100_000, target_update_interval=10, exploration_fraction=0.16,
            exploration_final_eps=0.04,
        ),
        "MountainCar: DQN, Stable-Baselines3": _alone(
            "MountainCar", 120_000, -100.8, 16, learning_rate=4e-3, batch_size=128,
            buffer_size=10_000, target_update_interval=600, exploration_fraction=0.2,
            exploration_final_eps=0.07, gamma=0.98,
        ),
        "Acrobot: DQN": _case(
            "Acrobot", _ACROBOT, "DQN", 100_000, -76.6,
            _dqn(6.3e-4, 128, 50_000, 0, 250, 4, 4, 12_000, 0.1), _Q_NETWORK,
        ),
        "MountainCarContinuous, held actions: SAC, defaults": _case(
            "MountainCarContinuous, held actions", _HELD_ACTIONS, "SAC", 3_600, 94.7, {}, {},
        ),
        "MountainCarContinuous: SAC": _case(
            "MountainCarContinuous", "gymnasium:MountainCarContinuous-v0", "SAC", 50_000, 94.7,
            {"actor_lr": 3e-4, "critic_lr": 3e-4, "alpha_lr": 0.0, "initial_alpha": 0.1,
             "replay_buffer_config": {"capacity": 50_000}, "train_batch_size_per_learner": 512,
             "rollout_fragment_length": 32, "training_intensity": 512.0, "gamma": 0.9999,
             "tau": 0.01, "num_steps_sampled_before_learning_starts": 0},
            {"fcnet_activation": "relu", "fcnet_hiddens": [64, 64]},
        ),
        "simple_spread: QMIX": ByServer(
            "", (), env_steps=2_000_000, measure=measure_spread, every=500_000,
            levels={"random": RANDOM["simple_spread"], "published": -126.6},
            env=f"{_HERE}:EndedSpread", algorithm="QMIX",
            settings={**_QMIX, "tau": 0.01, "epsilon": [[0, 1.0], [200_000, 0.05]]},
            num_envs=16, agents=_MEMBERS, groups={"team": list(_MEMBERS)},
        ),
        "foraging: QMIX": ByServer(
            "", (), env_steps=2_000_000, measure=measure, every=250_000,
            levels={"random": RANDOM["foraging"], "published": 0.83},
            env=f"{_HERE}:FirstForaging", algorithm="QMIX",
            settings={**_QMIX, "agent": "mlp", "optimizer_epsilon": 1e-8}, num_envs=10,
            agents=_MEMBERS[:2], groups={"team": list(_MEMBERS[:2])},
        ),
        "foraging: MAPPO": ByServer(
            "", (), env_steps=500_000, measure=measure_sampled, every=100_000,
            levels={"random": RANDOM["foraging"], "published": 0.64},
            env=f"{_HERE}:FirstForaging", algorithm="MAPPO", settings=_MAPPO,
            model={"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}, num_envs=10,
            agents=_MEMBERS[:2], groups={"team": list(_MEMBERS[:2])},
        ),
}  # fmt: skip

TABLE = CaseTable(CASES, seeds=(0, 1, 2))

if __name__ == "__main__":
    main(TABLE, __doc__)
