"""The processes of a run report the metrics that their simulations give for each episode."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins

from muxrl.client import PolicyClient
from muxrl.client.adapters import adapt
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.standalone import muxrl_client as standalone
from muxrl.experiments.simulations.stairs import Stairs
from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.config import EvaluationConfig, ExperimentConfig, load_config
from muxrl.orchestrator.launch.in_process import serve
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.played import read_episodes
from muxrl.orchestrator.supervise import gateway_process, simulation_process
from muxrl.orchestrator.supervise.episodes import ServerAddress
from muxrl.orchestrator.supervise.evaluation_process import EvaluationProcess
from muxrl.orchestrator.supervise.gateway_process import GatewayProcess
from muxrl.orchestrator.supervise.simulation_process import SimulationProcess

PLAYED = "muxrl.experiments.simulations"


def config_of(env: str, evaluation: Any = None, **simulation: Any) -> ExperimentConfig:
    """Returns a config with one of our simulations, which a random server plays."""
    given = {"simulation": {"env": f"{PLAYED}.{env}", **simulation}, "evaluation": evaluation or {}}
    return load_config(given, {"servers.all": {"algorithm": "RANDOM", "agents": ["*"]}})


SMALL = {"num_steps": 8, "size": 3}
CHASE = config_of("torus_chase:TorusChase", kwargs=SMALL, metrics={"caught": "sum"})
TABLE = ZeroCost(num_steps=8).table
Addresses = Mapping[str, ServerAddress]


@pytest.fixture(scope="module")
def servers() -> Iterator[Addresses]:
    """Gives the addresses of servers with fixed policies, which need neither Ray nor training."""
    with serve(CHASE) as served:
        yield served.addresses


@pytest.fixture(autouse=True)
def keep_collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the garbage of these tests be collected, from which the processes exempt objects."""
    for module in (simulation_process, gateway_process):
        monkeypatch.setattr(module, "settle", lambda: None)


def test_an_evaluation(servers: Addresses) -> None:
    process = EvaluationProcess(CHASE, 4)
    process.connect(servers)
    (played,) = process.evaluate([Condition()], 7, 6, {})
    assert played.metrics["episode_length"] == {"__common__": (8.0,) * 6}
    assert played.metrics["truncated"] == {"__common__": (1.0,) * 6}, "the chase's time limit"
    caught = played.metrics["caught"]
    assert caught.keys() == {"prey_0", "prey_1"}
    # A prey pays 1 each time it is caught.
    paid = {prey: tuple(-r for r in played.returns[prey] if r is not None) for prey in caught}
    assert caught == paid
    assert any(map(any, caught.values()))
    assert (played.num_truncated, process.report().under_way) == (0, (6, 0))


def test_evaluation_episodes_that_are_too_long_are_truncated(servers: Addresses) -> None:
    short = replace(CHASE, evaluation=EvaluationConfig(max_episode_steps=5))
    process = EvaluationProcess(short, 2)
    process.connect(servers)
    for _ in range(2):
        (played,) = process.evaluate([Condition()], 7, 3, {})
        assert played.metrics["episode_length"] == {"__common__": (5.0,) * 3}
        assert played.metrics["truncated"] == {"__common__": (1.0,) * 3}
        assert played.num_truncated == 3


def test_an_evaluation_follows_a_server_that_has_moved(servers: Addresses) -> None:
    process = EvaluationProcess(CHASE, 1)
    process.connect({"all": ServerAddress("127.0.0.1:1")})
    process.move("all", servers["all"].address)
    (played,) = process.evaluate([Condition()], 7, 1, {})
    assert played.metrics["episode_length"]


@contextlib.contextmanager
def playing(process: SimulationProcess, servers: Addresses) -> Iterator[SimulationProcess]:
    """Lets a process play in a thread while the block runs."""
    process.connect(servers)
    thread = threading.Thread(target=process.run)
    thread.start()
    try:
        yield process
    finally:
        process.stop()
        thread.join(30.0)
    assert not thread.is_alive()


def test_training(servers: Addresses) -> None:
    tally = Tally()
    with playing(SimulationProcess(CHASE, 0), servers) as process:
        while tally.num_episodes < 10:
            tally.add("simulation-0", process.report())
    record = to_builtins(tally.row())
    assert record["metrics"]["episode_length"] == {"__common__": 8.0}
    assert record["metrics"]["truncated"] == {"__common__": 1.0}
    for prey, caught in record["metrics"]["caught"].items():
        assert caught == pytest.approx(-record["episode_return_mean"][prey])


def test_copies_of_a_vector_environment_swap_sides_and_are_recorded(tmp_path: Path) -> None:
    sides_swap = {"side": {"sides": ["agent_0", "agent_1"]}}
    copies = {"vector_env": True, "num_envs_per_process": 4, "record": 0.5}
    of_copy = {"kwargs": {"num_steps": 8}, "parameters": sides_swap}
    config = config_of("zero_cost:ZeroCostVector", **copies, **of_copy)
    with serve(config) as served:
        process = SimulationProcess(config, 0, parameters=sides_swap, episodes=tmp_path)
        sides: list[float] = []
        with playing(process, served.addresses):
            while len(sides) < 60:
                sides += [one["side"]["__common__"] for one in process.report().metrics]
    assert 0.2 < sum(sides) / len(sides) < 0.8
    recorded = [next(read_episodes(path)) for path in tmp_path.glob("*.parquet")]
    assert 10 < len(recorded) < len(sides)
    for rows, parameters in recorded:
        first = rows[0]["observation"], rows[1]["observation"]
        swapped = first[::-1] if parameters["side"] else first
        here = int(np.argmin([np.abs(swapped[0] - one).sum() for one in TABLE[:, 0]]))
        assert np.array_equal(swapped[1], TABLE[here, 1])
        assert len(rows) == 6 * (8 - here)


def test_a_gateway_gives_episodes_parameters_and_evaluations_theirs(servers: Addresses) -> None:
    evaluation = {"parameters": {"distance": 20}, "max_episode_steps": 30}
    drawn = {"distance": {"low": 1, "high": 3}}
    config = config_of("stairs:Stairs", evaluation, parameters=drawn)
    with serve(config) as served:
        process = GatewayProcess(config, served.addresses)
        results: list[EpisodeResult] = []
        address = process.start(config.simulation.parameters)
        with PolicyClient(address) as client, standalone.PolicyClient(address) as other:
            loop = EnvLoop([adapt(Stairs()) for _ in range(2)], client)
            loop.run(results.append, should_stop=lambda: len(results) >= 20)
            process.set_parameters({"distance": 9})
            client.start_episode()
            assert (client.parameters, client.is_evaluation) == ({"distance": 9}, False)
            evaluating = threading.Thread(target=process.evaluate, args=([Condition()], 7, 2, {}))
            evaluating.start()
            while client.parameters != {"distance": 20}:
                client.abort_episode(client.start_episode())
            assert client.is_evaluation
            other.start_episode()
            assert (other.parameters, other.is_evaluation) == ({"distance": 20}, True)
            asked = process._gateway.wanted._evaluation
        # no client is left that would have to be told
        process.end("it is over", has_ended_well=True)
        evaluating.join(30.0)
        assert asked is not None
        assert asked.max_steps == 30
        without = EvaluationProcess(config, 1)
        without.connect(served.addresses)
        (played,) = without.evaluate([Condition()], 7, 2, {})
        assert played.metrics["distance"] == {"__common__": (20.0, 20.0)}
    told = [one.metrics["distance"]["__common__"] for one in results]
    assert {1.0, 2.0, 3.0} >= set(told) > {1.0}
    # A climber climbs at most the distance of its episode.
    assert all(one.num_steps <= d for one, d in zip(results, told, strict=True))
    assert [one["distance"]["__common__"] for one in process.report().metrics] == told
