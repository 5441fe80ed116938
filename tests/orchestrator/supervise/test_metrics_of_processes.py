"""The processes of a run hand on what their simulation says of each episode."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import to_builtins

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.supervise import evaluation_process, simulation_process
from muxrl.orchestrator.supervise.episodes import Patience, ServerAddress
from muxrl.orchestrator.supervise.evaluation_process import EvaluationProcess
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds, SimulationProcess
from muxrl.servers.config import ServerConfig

CHASE = SimulationConfig(
    "muxrl.experiments.simulations.torus_chase:TorusChase",
    {"num_steps": 8, "size": 3},
    metrics={"caught": "sum"},
)


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[str, ServerAddress]]:
    """Fixed policies for all agents: their processes need neither Ray nor time to learn."""
    config = ExperimentConfig(
        "chase", simulation=CHASE, servers={"all": ServerConfig("RANDOM", ["*"])}
    )
    with serve(config) as served:
        yield served.addresses


@pytest.fixture(autouse=True)
def keep_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own sends its output to its log."""
    for module in (simulation_process, evaluation_process):
        monkeypatch.setattr(module, "set_up", lambda log_path: None)
    monkeypatch.setattr(simulation_process, "settle", lambda: None)


def test_an_evaluation(servers: Mapping[str, ServerAddress], tmp_path: Path) -> None:
    process = EvaluationProcess(CHASE, 4, servers, Patience(), "", tmp_path)
    played = process.evaluate(None, 7, 6, {})
    assert played.metrics["episode_length"] == {"__common__": (8.0,) * 6}
    caught = played.metrics["caught"]
    assert caught.keys() == {"prey_0", "prey_1"}
    # A prey pays 1 each time it is caught.
    paid = {prey: tuple(-r for r in played.returns[prey] if r is not None) for prey in caught}
    assert caught == paid
    assert any(map(any, caught.values()))


def test_training(servers: Mapping[str, ServerAddress], tmp_path: Path) -> None:
    process = SimulationProcess(CHASE, 0, servers, EpisodeSeeds(3), Patience(), "", tmp_path)
    playing = threading.Thread(target=process.run)
    playing.start()
    tally = Tally()
    try:
        while tally.num_episodes < 10:
            tally.add("simulation-0", process.report())
    finally:
        process.stop()
        playing.join(30.0)
    assert not playing.is_alive()
    record = to_builtins(tally.row())
    assert record["metrics"]["episode_length"] == {"__common__": 8.0}
    for prey, caught in record["metrics"]["caught"].items():
        assert caught == pytest.approx(-record["episode_return_mean"][prey])
