"""Steps in rows, over a network, are acted on and learned from like single steps."""

from __future__ import annotations

from typing import Any

import pytest

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_vector_simulation
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

ZERO_COST = "muxrl.experiments.simulations.zero_cost:ZeroCost"
NUM_SIMULATIONS, NUM_EPISODES = 8, 16

SERVERS: dict[str, ServerConfig] = {
    "qmix": ServerConfig(
        "QMIX",
        agents=["agent_0", "agent_1", "agent_2"],
        groups={"team": ["agent_0", "agent_1", "agent_2"]},
        use_global_state=False,
        settings={"batch_size_episodes": 4, "num_episodes_before_learning": 8},
    ),
    "ppo": ServerConfig(
        "PPO",
        agents=["agent_3", "agent_4"],
        settings={"train_batch_size_per_learner": 400, "minibatch_size": 100, "num_epochs": 1},
    ),
    "lstm": ServerConfig(
        "PPO",
        agents=["agent_5"],
        model={"use_lstm": True, "max_seq_len": 20},
        settings={"train_batch_size_per_learner": 400, "minibatch_size": 100, "num_epochs": 1},
    ),
    "mappo": ServerConfig(
        "MAPPO",
        agents=["agent_6", "agent_7"],
        groups={"pair": ["agent_6", "agent_7"]},
        settings={"train_batch_size_per_learner": 400, "minibatch_size": 100, "num_epochs": 1},
    ),
    "maddpg": ServerConfig(
        "MADDPG",
        agents=["agent_8", "agent_9"],
        groups={"team": ["agent_8", "agent_9"]},
        use_global_state=False,
        settings={"num_steps_before_learning": 200, "updates_per_step": 0.02},
    ),
}
AGENTS = {"num_agents": 10}


def test_servers_learn_from_a_vector_simulation(rllib: None) -> None:
    config = ExperimentConfig(
        "vector",
        simulation=SimulationConfig(f"{ZERO_COST}Vector", AGENTS, vector_env=True),
        servers=dict(SERVERS),
    )
    results: list[EpisodeResult] = []
    with serve(config) as served:
        with served.client() as client:
            assert all(spec.takes_rows for spec in client.specs.values())
            vector = make_vector_simulation(f"{ZERO_COST}Vector", AGENTS, NUM_SIMULATIONS)
            loop = EnvLoop(vector, client)
            loop.run(results.append, lambda: loop.num_env_steps >= NUM_EPISODES * 100)
            assert client.num_mismatches == 0
        served.check()
        found = {server_id: server.status() for server_id, server in served.servers.items()}
    # The first episodes of the copies begin one after another, so the last ones are cut off.
    assert loop.num_episodes == len(results) >= NUM_EPISODES
    for status in found.values():
        assert status.num_env_steps == loop.num_env_steps
        assert status.num_episodes == loop.num_episodes
        assert status.num_refused == 0
        assert status.iteration >= 1


@pytest.mark.parametrize("how", [{"transport": "http"}, {"inference_mode": "local"}])
def test_a_vector_simulation_plays_over_transports_without_rows(
    rllib: None, how: dict[str, Any]
) -> None:
    config = ExperimentConfig(
        "singly",
        simulation=SimulationConfig(f"{ZERO_COST}Vector", vector_env=True),
        servers={"ppo": ServerConfig("PPO", agents=["agent_*"])},
    )
    with serve(config) as served:
        (address,) = [server.address for server in served.addresses.values()]
        with MultiplexingClient([address], **how) as client:
            vector = make_vector_simulation(f"{ZERO_COST}Vector", {}, 4)
            loop = EnvLoop(vector, client)
            loop.run(should_stop=lambda: loop.num_env_steps >= 440)
            assert client.num_mismatches == 0
        served.check()
        assert served.servers["ppo"].status().num_env_steps == loop.num_env_steps
