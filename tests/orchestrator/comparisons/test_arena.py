"""Players of a head to head: a server in a process of its own, and simulations with bad values."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

from muxrl.client.env_loop import EnvLoop
from muxrl.client.errors import RefusedByServer
from muxrl.experiments.simulations.parallel_game import ParallelGame, Reset
from muxrl.orchestrator.comparisons.arena import Arena
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.evaluations.frozen import Player
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

COMMAND = [sys.executable, "-m", "muxrl.serving", "tests.servers.trainers.brought:Counting"]
SIMULATION = SimulationConfig(
    env="muxrl.experiments.simulations.cue_game:CueGame", kwargs={"num_agents": 2}
)


def test_a_server_in_a_process_of_its_own_plays_from_its_checkpoint(tmp_path: Path) -> None:
    server = ServerConfig(agents=["agent_0", "agent_1"], command=COMMAND)
    config = ExperimentConfig(name="x", simulation=SIMULATION, servers={"own": server})
    with serve(config) as served:
        with served.client() as client:
            loop = EnvLoop([served.simulation()], client, seeds=iter(range(100)))
            loop.run(should_stop=lambda: loop.num_env_steps >= 12)
        own = served.servers["own"]
        own.finish_training(60.0)
        own.save(tmp_path / "saved", 60.0)
        (expected,) = served.evaluate(1, first_seed=7)
        assert own.status().iteration % 4 != 0  # otherwise it would act as its first version does
    random = ServerConfig(algorithm="RANDOM", agents=["agent_0", "agent_1"])
    player = Player(server, "own", "all", resume_from=str(tmp_path / "saved"))
    with Arena(config, {"all": ("agent_0", "agent_1")}) as arena:
        found = arena.play({"all": player}, [7])
    config.evaluation.max_episode_steps = 2
    with Arena(config, {"all": ("agent_0", "agent_1")}) as arena:
        arena.play({"all": Player(random, "at random", "all")}, [7, 8])
        assert [note.partition(":")[0] for note in arena.notes()] == [
            "2 of the episodes played here"
        ]
    assert {agent: returns[0] for agent, returns in found.items()} == expected.returns


class Wild(ParallelGame):
    """Pays rewards that are no numbers in episodes of odd seeds."""

    def __init__(self) -> None:
        sees = {"agent": spaces.Discrete(2)}
        super().__init__(sees, sees, num_steps=2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._pay = math.nan if (seed or 0) % 2 else 1.0
        return super().reset(seed, options)

    def _begin(self) -> None: ...

    def _observe(self) -> dict[str, Any]:
        return {"agent": 0}

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        return {"agent": self._pay}


def test_a_bad_value_ends_an_episode_as_it_does_in_evaluations() -> None:
    server = ServerConfig("RANDOM", ["agent"])
    config = ExperimentConfig("x", simulation=SimulationConfig(f"{__name__}:Wild"))
    seating = {"all": Player(server, "random", "all")}
    with Arena(config, {"all": ("agent",)}) as arena, pytest.raises(RefusedByServer):
        arena.play(seating, [2, 3, 4])
    config.simulation.on_bad_value = "episode"
    with Arena(config, {"all": ("agent",)}) as arena:
        assert arena.play(seating, [2, 3, 4]) == {"agent": (2.0, None, 2.0)}
