"""A run's simulations act in the servers' place, and servers have counted all when they pause."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from muxrl.client.local_transport import LocalTransport
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.orchestrator.supervise import simulation_process
from muxrl.orchestrator.supervise.simulation_process import SimulationProcess
from muxrl.servers.config import ServerConfig

SIMULATION = SimulationConfig(
    "muxrl.experiments.simulations.zero_cost:ZeroCost",
    {"num_agents": 4, "num_steps": 300},
    num_envs_per_process=2,
    inference_mode={"team": "local", "dqn": "local"},
)
SERVERS = {
    "team": ServerConfig("QMIX", ["agent_0", "agent_1"], groups={"both": ["*"]}),
    "dqn": ServerConfig("DQN", ["agent_2"], on_server_loss="random"),
    "ppo": ServerConfig("PPO", ["agent_3"]),
}


def test_counts_agree_whenever_it_pauses(
    rllib: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation_process, "settle", lambda: None)
    config = ExperimentConfig("local", simulation=SIMULATION, servers=SERVERS)
    with serve(config) as served:
        process = SimulationProcess(config, 0)
        process.connect(served.addresses)
        transports: dict[str, Any] = process._client._transports
        assert isinstance(transports["team"], LocalTransport)
        assert isinstance(transports["dqn"]._server, LocalTransport)
        assert not isinstance(transports["ppo"], LocalTransport)
        playing = threading.Thread(target=process.run)
        playing.start()
        try:
            for _ in range(4):
                before = process.report().num_env_steps
                while process.report().num_env_steps < before + 150:
                    pass
                assert process.hold(0.0, 60.0).do()
                played = process.report().num_env_steps
                statuses = {s: server.status() for s, server in served.servers.items()}
                counted = {s: status.num_env_steps for s, status in statuses.items()}
                assert counted == dict.fromkeys(SERVERS, played)
                process.release()
        finally:
            process.stop()
            playing.join(60.0)
        assert not playing.is_alive()
        report = process.report()
        assert (report.num_mismatches, report.num_lost_steps) == (0, 0)
        served.check()
