"""Stable-Baselines3's algorithms as trainers, with their own ``train()``, buffers and networks.

This is also an example to copy. Stable-Baselines3 sees agents that share a policy as parallel
environments. The settings are the arguments of its class, and ``total_timesteps``, over which its
schedules go. It draws from the global generators of numpy and torch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from muxrl.servers.agents.log_probs import IS_LOGGED
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.setting_values import signature_of
from muxrl.servers.trainers.interface import Acted, LearnsFrom, PolicySpec, Rows
from muxrl.servers.training.skipped_updates import LARGE

try:
    import stable_baselines3 as sb3
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.logger import Logger
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; Stable-Baselines3 comes with: pip install 'muxrl[sb3]'", name=error.name
    ) from error

_OURS = frozenset(
    {
        *("policy", "env", "seed", "device", "verbose", "tensorboard_log", "action_noise"),
        *("n_steps", "train_freq", "use_sde", "sde_sample_freq", "use_sde_at_warmup"),
        *("replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage"),
        *("rollout_buffer_class", "rollout_buffer_kwargs", "stats_window_size"),
        *("monitor_wrapper", "_init_setup_model"),
    }
)
"""Arguments that the server sets, or that have no meaning on a server."""


class _NoSteps(gymnasium.Env):
    """An environment that only has a policy's spaces, for Stable-Baselines3 to read."""

    def __init__(self, policy: PolicySpec) -> None:
        self.observation_space = policy.observation_space
        self.action_space = copy.deepcopy(policy.action_space)  # a space has a generator of its own


class _Algorithm:
    """Base class of on-policy and off-policy algorithms of Stable-Baselines3.

    Args:
        policy: the policy that it learns, without action masks: Stable-Baselines3 knows none.
        batch_env_steps: env steps between two calls of ``train()``: ``n_steps`` or ``train_freq``.
        total_timesteps: agent steps over which schedules go.
        network: name of Stable-Baselines3's policy, such as ``MlpPolicy``.
        **settings: arguments of Stable-Baselines3's class.
    """

    algorithm: ClassVar[Any]
    gamma: float = 0.99

    def __init_subclass__(cls) -> None:
        """Gives a subclass the arguments of Stable-Baselines3's class, to find typos."""
        if not hasattr(cls, "algorithm"):
            return
        found = {
            name: parameter.replace(kind=parameter.KEYWORD_ONLY)
            for name, parameter in signature_of(cls.algorithm.__init__).parameters.items()
            if name not in _OURS
        }
        for one in reversed(cls.__mro__):
            if issubclass(one, _Algorithm) and "__init__" in vars(one):
                found |= signature_of(vars(one)["__init__"]).parameters
        kept = [p for n, p in found.items() if n != "self" and p.kind is not p.VAR_KEYWORD]
        cls.__signature__ = inspect.Signature(sorted(kept, key=lambda p: p.kind))  # type: ignore[attr-defined]

    def __init__(
        self,
        policy: PolicySpec,
        *,
        batch_env_steps: int,
        total_timesteps: int,
        network: str = "MlpPolicy",
        **settings: Any,
    ) -> None:
        if policy.has_masks:
            raise ValueError("Stable-Baselines3 knows no action masks; its agents observe one")
        self.batch_env_steps = batch_env_steps
        self.gamma = settings.get("gamma", self.gamma)
        self._total_timesteps = total_timesteps
        self._model: Any = self.algorithm(
            network, _NoSteps(policy), seed=policy.seed, device=policy.device,
            **copy.deepcopy(settings),  # A2C writes into its policy_kwargs
        )  # fmt: skip
        self._model.set_logger(Logger(folder=None, output_formats=[]))

    def weights(self) -> dict[str, Any]:
        """Returns the parameters of all networks."""
        return dict(self._model.policy.state_dict())

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Puts parameters into the networks."""
        self._model.policy.load_state_dict(weights)

    def network(self) -> torch.nn.Module:
        """Returns the module behind `act`, for files."""
        return _Greedy(self._model.policy)

    def state(self) -> dict[str, Any]:
        """Returns parameters, optimizers and counts."""
        model = self._model
        return {
            "parameters": model.get_parameters(),
            "variables": {name: getattr(model, name).detach() for name in self._variables()},
            "num_timesteps": model.num_timesteps,
            "n_updates": model._n_updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Loads what `state` returned."""
        model = self._model
        model.set_parameters(state["parameters"])
        for name in self._variables():
            getattr(model, name).data.copy_(state["variables"][name])
        model._n_updates = state["n_updates"]
        self._count(state["num_timesteps"])

    def _seen(self, rows: Rows) -> Any:
        return self._model.policy.obs_to_tensor(rows.observations)[0]

    def _variables(self) -> list[str]:
        """Returns the names of tensors outside of networks, such as SAC's ``log_ent_coef``."""
        names: list[str] = self._model._get_torch_save_params()[1]
        return [name for name in names if hasattr(self._model, name)]

    def _count(self, num: int) -> None:
        self._model.num_timesteps = num
        self._model._update_current_progress_remaining(num, self._total_timesteps)

    def _metrics(self) -> dict[str, float]:
        """Returns the metrics that ``train()`` has logged: "loss", "value_loss" and the like."""
        logged = self._model.logger.name_to_value
        metrics = {name.removeprefix("train/"): float(value) for name, value in logged.items()}
        logged.clear()
        return metrics


class _Greedy(torch.nn.Module):
    """Returns the scores of Discrete actions, or the greedy actions of a Box."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observed: torch.Tensor) -> Any:
        policy: Any = self.policy
        if hasattr(policy, "action_net"):
            features = policy.extract_features(observed, policy.pi_features_extractor)
            return policy.action_net(policy.mlp_extractor.forward_actor(features))
        if hasattr(policy, "q_net"):
            return policy.q_net(observed)
        if hasattr(policy, "quantile_net"):
            return policy.quantile_net(observed).mean(dim=1)
        # Without a distribution, whose checks of its arguments cannot be traced.
        parameters = getattr(policy.actor, "get_action_dist_params", None)
        action = parameters(observed)[0].tanh() if parameters else policy.actor(observed)
        low, high = map(torch.from_numpy, (policy.action_space.low, policy.action_space.high))
        return low + 0.5 * (action + 1.0) * (high - low)


class OnPolicy(_Algorithm):
    """Learns from a rollout buffer that holds a batch's trajectories one after another."""

    learns_from: LearnsFrom = "newest"

    def act(self, rows: Rows) -> Any:
        network = self._model.policy
        with torch.no_grad():
            observed, _ = network.obs_to_tensor(rows.observations)
            if not rows.is_training:
                return network._predict(observed, deterministic=not rows.should_explore).cpu()
            chosen, values, log_probs = network(observed, deterministic=not rows.should_explore)
        outputs = {"value": values[:, 0].cpu().numpy(), "log_prob": log_probs.cpu().numpy()}
        return Acted(chosen.cpu().numpy(), outputs)

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        if any(np.any(one.outputs.get(IS_LOGGED, False)) for one in trajectories):
            raise ValueError(
                "the simulation logged actions, and Stable-Baselines3 has no weight for what its "
                "policy did not choose; take muxrl's PPO or A2C, or an off-policy algorithm"
            )
        model = self._model
        num = sum(map(len, trajectories))
        buffer = RolloutBuffer(
            num, model.observation_space, model.action_space, model.device,
            gae_lambda=model.gae_lambda, gamma=model.gamma,
        )  # fmt: skip
        begin = 0
        for one in trajectories:
            rows = slice(begin, begin + len(one))
            rewards = one.rewards.astype(np.float32)
            if not one.is_terminated:  # as Stable-Baselines3 does at a time limit
                with torch.no_grad():
                    last, _ = model.policy.obs_to_tensor(one.observations[-1:])
                    rewards[-1] += model.gamma * float(model.policy.predict_values(last))
            buffer.observations[rows, 0] = one.observations[:-1]
            buffer.actions[rows, 0] = one.actions.reshape(len(one), -1)
            buffer.rewards[rows, 0] = rewards
            buffer.episode_starts[begin] = 1.0
            buffer.values[rows, 0] = one.outputs["value"]
            buffer.log_probs[rows, 0] = one.outputs["log_prob"]
            begin = rows.stop
        buffer.pos, buffer.full = num, True
        buffer.compute_returns_and_advantage(torch.zeros(1), np.ones(1))
        self._count(model.num_timesteps + num)
        model.rollout_buffer = buffer
        model.train()
        return self._metrics()

    @torch.no_grad()
    def probabilities(self, rows: Rows) -> Any:
        """Returns the probabilities of all actions, ``[n, num_actions]``."""
        return self._model.policy.get_distribution(self._seen(rows)).distribution.probs

    @torch.no_grad()
    def value(self, rows: Rows) -> Any:
        """Returns the critic's values, ``[n]``."""
        return self._model.policy.predict_values(self._seen(rows))[:, 0]


class OffPolicy(_Algorithm):
    """Adds each batch's transitions to a replay, and calls ``train()`` once for each batch."""

    learns_from: LearnsFrom = "replay"
    _noise_std = 0.0
    """Standard deviation of Gaussian noise on actions in -1..1."""

    def act(self, rows: Rows) -> Any:
        model = self._model
        size, std = (len(rows), *model.action_space.shape), self._noise_std
        noise = (lambda: rows.rng.normal(0.0, std, size)) if std and rows.should_explore else None
        if not (rows.should_explore and rows.is_training):
            best = model.predict(rows.observations, deterministic=not rows.should_explore)[0]
            if noise is None:
                return best
            noisy = model.policy.scale_action(best) + noise()
            return model.policy.unscale_action(noisy.clip(-1.0, 1.0))
        model._last_obs = rows.observations
        chosen = model._sample_action(model.learning_starts, noise, len(rows))[0]
        for _ in range(len(rows)):  # not in `learn`, since the next action depends on it
            self._count(model.num_timesteps + 1)
            model._on_step()  # DQN's target network and exploration rate
        return chosen

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        model = self._model
        for one in trajectories:
            actions = one.actions.reshape(len(one), -1)
            if isinstance(model.action_space, gymnasium.spaces.Box):
                actions = model.policy.scale_action(actions)
            for i in range(len(one)):
                model.replay_buffer.add(
                    one.observations[i : i + 1],
                    one.observations[i + 1 : i + 2],
                    actions[i],
                    one.rewards[i : i + 1],
                    np.array([one.is_terminated and i == len(one) - 1]),
                    [{}],
                )
        if model.num_timesteps > model.learning_starts:
            given = model.gradient_steps
            num = given if given >= 0 else sum(map(len, trajectories))
            model.train(gradient_steps=num, batch_size=model.batch_size)
        return self._metrics()

    def learned_state(self) -> dict[str, Any]:
        """Returns the part of the state that an update changes: all but the replay."""
        return super().state()

    def state(self) -> dict[str, Any]:
        model, replay = self._model, self._model.replay_buffer
        held = slice(None) if replay.full else slice(replay.pos)
        return {
            **super().state(),
            "n_calls": getattr(model, "_n_calls", 0),
            "exploration_rate": getattr(model, "exploration_rate", 0.0),
            "random_actions": model.action_space.np_random.bit_generator.state,
            "pos": replay.pos,
            "full": replay.full,
            "replay": {name: getattr(replay, name)[held] for name in _COLUMNS},
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        model, replay = self._model, self._model.replay_buffer
        if "replay" not in state:  # undoes an update
            self._forget_far()
            return
        if hasattr(model, "_n_calls"):
            model._n_calls = state["n_calls"]
            model.exploration_rate = state["exploration_rate"]
        model.action_space.np_random.bit_generator.state = state["random_actions"]
        replay.pos, replay.full = state["pos"], state["full"]
        for name in _COLUMNS:
            rows = state["replay"][name]
            getattr(replay, name)[: len(rows)] = rows

    def _forget_far(self) -> None:
        """Overwrites transitions with numbers far larger than those of the others.

        They would corrupt every update that draws one, and an update of many gradient steps draws
        nearly all.
        """
        replay = self._model.replay_buffer
        columns = [getattr(replay, name)[: replay.size()] for name in _COLUMNS]
        numbers = [c for c in columns if len(c) and c.dtype.kind == "f"]
        if not numbers:
            return
        sizes = np.max([np.abs(c).max(axis=tuple(range(1, c.ndim))) for c in numbers], axis=0)
        is_far = sizes > max(LARGE, _FAR * float(np.median(sizes)))
        (far,), (others,) = np.nonzero(is_far), np.nonzero(~is_far)
        for column in columns:
            column[far] = column[np.resize(others, len(far))]


_FAR = 1e3
"""How many times larger than the median a number is that counts as far."""
_COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class ValueBased(OffPolicy):
    """Takes the action of the highest value, or a random one with its exploration rate."""

    samples_actions = False

    def weights(self) -> dict[str, Any]:
        return {**super().weights(), _RATE: self._model.exploration_rate}

    def set_weights(self, weights: dict[str, Any]) -> None:
        self._model.exploration_rate = weights.get(_RATE, self._model.exploration_rate)
        super().set_weights({name: one for name, one in weights.items() if name != _RATE})

    @torch.no_grad()
    def value(self, rows: Rows) -> Any:
        """Returns the highest value over the actions, ``[n]``."""
        return _Greedy(self._model.policy)(self._seen(rows)).amax(1)


_RATE = "exploration_rate"


class PPO(OnPolicy):
    """Stable-Baselines3's PPO; ``batch_env_steps`` is its ``n_steps`` times environments."""

    algorithm = sb3.PPO


class A2C(OnPolicy):
    """Stable-Baselines3's A2C."""

    algorithm = sb3.A2C


class DQN(ValueBased):
    """Stable-Baselines3's DQN; ``batch_env_steps`` is its ``train_freq``."""

    algorithm = sb3.DQN


class SAC(OffPolicy):
    """Stable-Baselines3's SAC."""

    algorithm = sb3.SAC


class TD3(OffPolicy):
    """Stable-Baselines3's TD3, with Gaussian noise on actions in -1..1."""

    algorithm = sb3.TD3
    samples_actions = False

    def __init__(self, policy: PolicySpec, *, noise_std: float = 0.1, **settings: Any) -> None:
        super().__init__(policy, **settings)
        self._noise_std = noise_std
