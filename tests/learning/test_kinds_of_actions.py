"""Actions of every kind are learned: several choices at once, each by its own cue."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.nights import at_night

from muxrl.experiments.studies.case_table import evaluated, held, train
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.servers.config import ServerConfig
from muxrl.servers.lookup import find

pytestmark = pytest.mark.learning

NUM_STEPS = 8
ON_POLICY = {"train_batch_size_per_learner": 64, "lr": 0.003}
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {
        "minibatch_size": 128,
        "num_epochs": 6,
        "train_batch_size_per_learner": 512,
        "lr": 0.003,
    },
    "A2C": ON_POLICY,
    "IMPALA": ON_POLICY,
    # Every step is a game of its own.
    "DQN": {
        "gamma": 0.0,
        "epsilon": [[0, 1.0], [4_000, 0.05]],
        "lr": 0.003,
        "num_steps_sampled_before_learning_starts": 500,
        "train_batch_size_per_learner": 64,
    },
    "SAC": {
        "gamma": 0.0,
        "rollout_fragment_length": 4,
        "actor_lr": 0.003,
        "critic_lr": 0.003,
        "num_steps_sampled_before_learning_starts": 500,
        "train_batch_size_per_learner": 64,
    },
    "VDN": {"gamma": 0.0, "agent": "mlp", "epsilon": [[0, 1.0], [4_000, 0.05]], "lr": 0.002},
    "MADDPG": {
        "gamma": 0.0,
        "hidden_dim": 64,
        "batch_size_steps": 128,
        "num_steps_before_learning": 500,
        "updates_per_step": 0.5,
        "actor_lr": 0.003,
        "critic_lr": 0.003,
    },
}
KINDS: dict[str, spaces.Space] = {
    "lights": spaces.MultiBinary(4),
    "dials": spaces.MultiDiscrete([3, 2]),
    "pair": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Discrete(2, start=-1)]),
    "integers": spaces.Box(np.array([[0], [3]]), np.array([[2], [4]]), dtype=np.int64),
    "counted from 5": spaces.Discrete(6, start=5),
    "grid": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
}


class Cues(gymnasium.Env[Any, Any]):
    """A game in which each part of the action should be what its cue shows.

    The reward is the share of right parts, by chance a half or less; an episode has 8 steps. With
    `masked`, one wrong value is forbidden, and the environment refuses it.
    """

    def __init__(self, kind: str, masked: bool = False) -> None:
        self.action_space = KINDS[kind]
        self._masked = masked
        if isinstance(self.action_space, spaces.Box) and self.action_space.dtype == np.float32:
            self._sizes = [2] * 4
        else:
            space: Any = self.action_space
            self._low, self._sizes = {
                spaces.MultiBinary: lambda: ([0] * space.n, [2] * space.n),
                spaces.MultiDiscrete: lambda: ([0] * len(space.nvec), list(space.nvec)),
                spaces.Tuple: lambda: ([s.start for s in space], [int(s.n) for s in space]),
                spaces.Box: lambda: (space.low.ravel(), list((space.high - space.low + 1).ravel())),
                spaces.Discrete: lambda: ([space.start], [int(space.n)]),
            }[type(space)]()
        cue = spaces.Box(0.0, 1.0, (sum(self._sizes),), np.float32)
        mask = spaces.MultiBinary(int(sum(self._sizes)))
        self.observation_space = spaces.Dict({"action_mask": mask, "cue": cue}) if masked else cue

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        flat = np.ravel(action)
        if flat.dtype == np.float32:
            chosen = flat > 0
        else:
            chosen = flat - self._low
            ends = np.cumsum(self._sizes)
            assert not self._masked or self._mask[chosen + ends - self._sizes].all()
        self._t += 1
        reward = float(np.mean(chosen == self._right))
        return self._draw(), reward, self._t == NUM_STEPS, False, {}

    def _draw(self) -> Any:
        self._right = self.np_random.integers(self._sizes)
        cue = np.concatenate([np.eye(n)[i] for n, i in zip(self._sizes, self._right, strict=True)])
        if not self._masked:
            return cue.astype(np.float32)
        self._mask = np.ones(len(cue), np.int8)
        self._mask[self.np_random.choice(np.flatnonzero(cue == 0))] = 0
        return {"action_mask": self._mask, "cue": cue.astype(np.float32)}


BY_DAY = [
    ("PPO", "lights", False),
    ("DQN", "dials", True),
    ("SAC", "pair", True),
    ("VDN", "integers", True),
    ("MADDPG", "pair", True),
]
AT_NIGHT = [
    ("PPO", "grid", False),
    ("IMPALA", "lights", False),
    ("DQN", "lights", False),
    ("PPO", "pair", True),
    ("A2C", "integers", True),
    ("VDN", "counted from 5", False),
]


@pytest.mark.parametrize(("algorithm", "kind", "masked"), at_night([*BY_DAY, *AT_NIGHT], AT_NIGHT))
def test_every_part_of_an_action_learns_its_cue(algorithm: str, kind: str, masked: bool) -> None:
    server = ServerConfig(algorithm, ["*"], settings=SETTINGS[algorithm])
    if find(algorithm).learns_from == "recent":
        server.while_learning = "wait"  # otherwise the result depends on how busy the machine is
    config = ExperimentConfig(
        name="cues",
        simulation=SimulationConfig(
            f"{__name__}:Cues", {"kind": kind, "masked": masked}, num_envs_per_process=8
        ),
        servers={"it": server},
    )
    num_env_steps = 2_500 if find(algorithm).learns_from == "replay" else 8_000
    enough = held(lambda figures: figures["return"] > 6.9)
    every = num_env_steps // 8
    measured = train(config, num_env_steps, every, evaluated(50), is_enough=enough)
    assert (
        measured[max(measured)]["return"] > 6.8
    )  # 8 if all are right, 5 or less with an untrained network
