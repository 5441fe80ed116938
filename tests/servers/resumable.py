"""Policies in the process of a test that play, are saved and are resumed."""

from __future__ import annotations

import copy
import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from tests.servers.acted import actions_of
from tests.servers.scripted_store import ACTS, make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.config import ServerPlan
from muxrl.servers.server import make_policies
from muxrl.servers.trainers.policies import TrainerPolicies
from muxrl.servers.training.policies import ServerProblem

T = 8
"""Steps of an episode. Batches of 4 or 32 steps end with an episode."""
T_IN_TEAMS = 40
"""Steps of an episode of a team. Five such episodes make a batch."""
PATIENCE_S = 60.0

_ON_POLICY = {"train_batch_size_per_learner": 32, "lr": 0.01}
_EPOCHS = {**_ON_POLICY, "minibatch_size": 16, "num_epochs": 2}
_SCHEDULES = {
    "lr": [[0, 0.01], [400, 0.001]],
    "entropy_coeff": [[0, 0.1], [400, 0.0]],
    "use_kl_loss": True,
    "kl_coeff": 0.5,
}
_ASYNCHRONOUS = {"train_batch_size_per_learner": 32, "rollout_fragment_length": T, "lr": 0.01}
REPLAY = {
    "train_batch_size_per_learner": 8,
    "num_steps_sampled_before_learning_starts": 32,
    "min_sample_timesteps_per_iteration": 16,
    "replay_buffer_config": {"capacity": 48},
    "rollout_fragment_length": 4,
}
DQN = {**REPLAY, "target_network_update_freq": 24, "lr": 0.01, "n_step": 3}
PRIORITIZED = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 48}
_TEAM = {
    "batch_size_episodes": 4,
    "num_episodes_before_learning": 4,
    "buffer_capacity_episodes": 6,
    "target_update_freq": 3,
    "min_sample_timesteps_per_iteration": 16,
    "epsilon": [[0, 1.0], [200, 0.1]],
    "hidden_dim": 8,
    "lr": 0.01,
}
_CONTINUOUS_TEAM = {
    "batch_size_steps": 8,
    "num_steps_before_learning": 50,
    "buffer_capacity_steps": 200,
    "updates_per_step": 0.1,
    "min_sample_timesteps_per_iteration": 16,
    "hidden_dim": 8,
    "initial_alpha": 0.3,
}
_DETERMINISTIC_TEAM = {
    **{key: value for key, value in _CONTINUOUS_TEAM.items() if key != "initial_alpha"},
    "policy_delay": 3,
    "exploration_noise": [[0, 0.5], [400, 0.1]],
}
_SMALL = {"fcnet_hiddens": [8]}
_LSTM = {**_SMALL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "PPO": ("PPO", _EPOCHS, _SMALL),
    "PPO with schedules": ("PPO", {**_EPOCHS, **_SCHEDULES}, _SMALL),
    "PPO with an LSTM": ("PPO", _EPOCHS, _LSTM),
    "PPO without a critic": ("PPO", {**_EPOCHS, "use_critic": False}, _SMALL),
    "A2C": ("A2C", _ON_POLICY, _SMALL),
    "MAPPO": ("MAPPO", _EPOCHS, _SMALL),
    "MAPPO with an LSTM": ("MAPPO", _EPOCHS, _LSTM),
    "HAPPO": ("HAPPO", _EPOCHS, _SMALL),
    "DQN": ("DQN", DQN, _SMALL),
    "DQN by priority": ("DQN", {**DQN, "replay_buffer_config": PRIORITIZED}, _SMALL),
    "SAC": ("SAC", REPLAY, _SMALL),
    "IMPALA": ("IMPALA", _ASYNCHRONOUS, _SMALL),
    "APPO": ("APPO", {**_ASYNCHRONOUS, "target_network_update_freq": 2}, _SMALL),
    "QMIX": ("QMIX", _TEAM, {}),
    "QMIX, rewards standardized": ("QMIX", {**_TEAM, "standardize_rewards": True}, {}),
    "QMIX by priority": ("QMIX", {**_TEAM, "prioritized_replay_alpha": 0.6}, {}),
    "VDN": ("VDN", _TEAM, {}),
    "QPLEX": ("QPLEX", {**_TEAM, "adv_hypernet_embed": 8, "num_kernel": 2}, {}),
    "IQL": ("IQL", _TEAM, {}),
    "MASAC": ("MASAC", _CONTINUOUS_TEAM, {}),
    "MASAC, rewards standardized": (
        "MASAC",
        {**_CONTINUOUS_TEAM, "standardize_rewards": True},
        {},
    ),
    "MADDPG": ("MADDPG", _DETERMINISTIC_TEAM, {}),
}
_NORMALIZED: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True}
FIELDS: dict[str, dict[str, Any]] = {
    "PPO, normalised": _NORMALIZED,
    "MAPPO, normalised": _NORMALIZED,
    "DQN, normalised": {"normalize_observations": True},
    "QMIX, normalised": {"normalize_observations": True},
    "DQN, stacked": {"frame_stack": 3},
}
CASES |= {case: CASES[case.partition(",")[0]] for case in FIELDS}
_IN_TEAMS = {"QMIX", "VDN", "QPLEX", "IQL", "MAPPO", "HAPPO", "MASAC", "MADDPG"}
_CONTINUOUS = {"MASAC", "MADDPG"}


def plan_of(case: str, **fields: Any) -> ServerPlan:
    algorithm, settings, model = CASES[case]
    given = {"algorithm": algorithm, "settings": settings, "model": model}
    groups = {"team": ("a", "b")} if algorithm in _IN_TEAMS else {}
    acts = Box((1,), "float32", -1.0, 2.0) if algorithm in _CONTINUOUS else ACTS
    plan = make_plan("ab", groups, acts=acts, **{**given, **FIELDS.get(case, {}), **fields})
    if algorithm == "HAPPO":  # its agents share no policy
        for agent_id, agent in plan.agents.items():
            plan.agents[agent_id] = dataclasses.replace(agent, policy_id=agent_id)
    return plan


class Served:
    """Policies in this process, and one simulation that plays them in lockstep."""

    def __init__(self, plan: ServerPlan) -> None:
        self.problems: list[str] = []
        policies = make_policies(plan, self.problems.append)
        assert isinstance(policies, TrainerPolicies)
        self.policies = policies
        self.policies.start()

    def play(self, first: int, last: int, who: Callable[[int], str] = lambda number: "ab") -> None:
        """Plays whole episodes; what happens in each depends on its number and its actions.

        Args:
            first: the number of the first episode.
            last: the number after the last episode's.
            who: returns the agents that play in an episode.
        """
        store = self.policies.store
        t_max = T_IN_TEAMS if store.plan.groups else T
        for number in range(first, last):
            rng, agents = np.random.default_rng(number), who(number)
            episode_id, rewards = f"episode-{number}", {}
            store.accept(StartEpisode(episode_id), 0.0)
            for t in range(t_max):
                seen = {agent: rng.random(2, np.float32) for agent in agents}
                pending = store.accept(Step(episode_id, t, seen, rewards), 0.0)
                store.finish_frame()
                actions = self._act(pending)
                rewards = {a: _reward(actions[a], seen[a][0] > 0.5) for a in agents}
            final = {agent: rng.random(2, np.float32) for agent in agents}
            store.accept(
                EndEpisode(
                    episode_id, t_max, True, rewards, {}, dict.fromkeys(agents, True), final
                ),
                0.0,
            )
            store.finish_frame()
            self.wait()

    def _act(self, pending: Any) -> Any:
        self.wait()
        return actions_of(self.policies.acting, pending)

    def wait(self) -> None:
        """Waits until the gate between acting and learning is open, as frames do."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.policies.feed.is_open:
            assert not self.problems
            assert time.monotonic() < deadline, "the update took too long"
            time.sleep(0.001)

    def end(self) -> None:
        assert self.policies.finish(PATIENCE_S)

    def state(self) -> Any:
        """Returns all that makes two learners the same: weights, targets, optimizers, counts."""
        return {
            "trainers": self.policies.acting.get("state"),
            "counts": dataclasses.asdict(self.policies.store.counts),
            "weights_seq_no": self.policies.acting.weights_seq_no,
            "env_steps": self.policies.acting.num_env_steps_sampled,
            "normalization": copy.deepcopy(self.policies._normalization.get_state()),
        }


def play_and_save(plan: ServerPlan, path: Path, num: int = 0) -> Served:
    """Plays the first `num` episodes, and saves what was learned."""
    served = Served(plan)
    served.play(0, num)
    served.policies.save(path)
    served.end()
    return served


def _reward(action: Any, wanted: Any) -> float:
    if np.ndim(action):  # of a Box
        return -float(np.abs(action - wanted).mean())
    return float(action == wanted)


def scramble() -> None:
    """Changes the random generators of this process, as if it were a new one."""
    torch.manual_seed(987)
    np.random.seed(987)
    random.seed(987)


def assert_same(one: Any, other: Any) -> None:
    tree.assert_same_structure(one, other)
    for (path, a), (_, b) in zip(
        tree.flatten_with_path(one), tree.flatten_with_path(other), strict=True
    ):
        assert np.array_equal(a, b), f"{'/'.join(map(str, path))}: {a} and {b}"


def refusal(plan: ServerPlan) -> str:
    with pytest.raises(ServerProblem) as refused:
        Served(plan)
    return str(refused.value)
