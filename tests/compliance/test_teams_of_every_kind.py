"""One real server trains teams that differ in size, spaces and absences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compliance.real_servers import MakeServer, wait_until

from muxrl.client import MultiplexingClient
from muxrl.orchestrator.config import (
    ConfigError,
    ExperimentConfig,
    SimulationConfig,
    SimulationFacts,
    StopConfig,
)
from muxrl.orchestrator.config.resolve import resolve
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, Space
from muxrl.servers.config import ServerConfig
from muxrl.servers.server import PolicyServer
from muxrl.servers.trainers.plain_state import find_not_finite
from muxrl.servers.trainers.policies import TrainerPolicies

# Episodes have 6 env steps: together one batch, which is whole episodes of 200 or more steps.
NUM_EPISODES = 34
NUM_ACTIONS = {"a": 3, "b": 2, "c": 5, "d": 3, "e": 3, "f": 3, "g": 3, "h": 2}
OBSERVATIONS: dict[str, Space] = {
    "a": Box((2,)),
    "b": DictSpace({"observation": Box((4,)), "action_mask": MultiBinary(2)}),
    "c": Discrete(3),  # networks read it as one-hot
    "d": Box((2,)),
    "e": Box((2,)),
    "f": Box((2,)),
    "g": Box((2,)),
    "h": Box((1,)),
}
GROUPS = {"unlike": ["a", "b", "c"], "pair_1": ["d", "e"], "pair_2": ["f", "g"]}
SETTINGS = {
    "batch_size_episodes": 4,
    "num_episodes_before_learning": 4,
    "min_sample_timesteps_per_iteration": 1,
    "hidden_dim": 8,
    "mixing_embed_dim": 4,
    "hypernet_embed": 4,
    "epsilon": 1.0,
    "td_lambda": 0.5,
    "standardize_rewards": True,
}


def team_server(make_server: MakeServer, algorithm: str) -> PolicyServer:
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={
            "teams": ServerConfig(
                algorithm=algorithm,
                agents=["*"],
                groups=GROUPS,
                late_members="allow",
                team_reward="mean",
                settings=dict(SETTINGS),
            )
        },
        stop=StopConfig(env_steps=10),
    )
    agents = {a: (OBSERVATIONS[a], Discrete(n)) for a, n in NUM_ACTIONS.items()}
    # The two pairs are alike and share a policy; every other team needs a policy of its own.
    config.servers["teams"].policies = {"all": ["*"]}
    with pytest.raises(ConfigError, match="their spaces differ"):
        resolve(config, SimulationFacts(agents))
    config.servers["teams"].policies = {"unlike": ["unlike"], "pair": ["pair_*"], "h": ["h"]}
    return make_server(resolve(config, SimulationFacts(agents)).servers["teams"])


def observe(agents: str, t: int) -> dict[str, Any]:
    rng = np.random.default_rng(t)
    seen: dict[str, Any] = {}
    for agent in agents:
        space = OBSERVATIONS[agent]
        if isinstance(space, Box):
            seen[agent] = rng.normal(size=space.shape).astype(np.float32)
        elif isinstance(space, Discrete):
            seen[agent] = int(rng.integers(space.n))
        else:
            observation = rng.normal(size=4).astype(np.float32)
            seen[agent] = {"observation": observation, "action_mask": np.array([0, 1])}
    return seen


@pytest.mark.parametrize("algorithm", ["QMIX", "VDN", "QPLEX", "IQL"])
def test_each_team_learns_whoever_is_missing(make_server: MakeServer, algorithm: str) -> None:
    server = team_server(make_server, algorithm)
    # The agents that act in each step: b comes late, a ends at 3, d and e alternate, c is rare.
    asked = ["acdfgh", "aefgh", "abcdfgh", "befgh", "bdfgh", "cefg"]
    with MultiplexingClient([server.address]) as client:
        for _ in range(NUM_EPISODES):
            episode_id = client.start_episode()
            for t, agents in enumerate(asked):
                actions = client.get_action(episode_id, observe(agents, t))
                assert actions.keys() == set(agents)
                assert all(0 <= actions[a] < NUM_ACTIONS[a] for a in agents)
                assert actions.get("b", 1) == 1, "its mask leaves it no other"
                ends = {"a": True} if t == 2 else {"h": True} if t == 4 else {}
                rewards = {a: float(actions[a] + t) for a in agents}
                client.log_returns(episode_id, rewards, terminations=ends)
            client.end_episode(episode_id, observe("bcdefg", len(asked)), truncated=True)
        assert client.num_mismatches == 0
    policies = server.policies
    assert isinstance(policies, TrainerPolicies)
    learners: Any = policies.acting.learners

    def num_updates() -> dict[str, int]:
        return {policy_id: one.num_updates for policy_id, one in learners.items()}

    # The first three episodes of each policy only fill its replay; the two pairs share one.
    expected = {"unlike": NUM_EPISODES - 3, "h": NUM_EPISODES - 3, "pair": 2 * NUM_EPISODES - 3}
    wait_until(lambda: num_updates() == expected)
    assert server.status().problem == ""
    assert find_not_finite(policies.acting.get("networks")) == ""
