"""A server that is a process of its own plays again in a head to head."""

import sys
from pathlib import Path

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.comparisons.arena import Arena, Player
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

COMMAND = [sys.executable, "-m", "muxrl.serving", "tests.servers.trainers.brought:Counting"]
SIMULATION = SimulationConfig(
    env="muxrl.experiments.simulations.cue_game:CueGame", kwargs={"num_agents": 2}
)


def test_it_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    server = ServerConfig(agents=["agent_0", "agent_1"], command=COMMAND)
    config = ExperimentConfig(name="x", simulation=SIMULATION, servers={"own": server})
    with serve(config) as served:
        with served.client() as client:
            loop = EnvLoop([served.simulation()], client, seeds=iter(range(100)))
            loop.run(should_stop=lambda: loop.num_env_steps >= 12)
        own = served.own_servers["own"]
        own.finish_training(60.0)
        own.save(tmp_path / "saved", 60.0)
        (expected,) = served.evaluate(1, first_seed=7)
        assert own.status().iteration % 4 != 0  # its first version plays otherwise
    random = ServerConfig(algorithm="RANDOM", agents=["agent_0", "agent_1"])
    player = Player("own", "all", server, resume_from=str(tmp_path / "saved"))
    with Arena(config, {"all": ("agent_0", "agent_1")}) as arena:
        found = arena.play({"all": player}, [7])
    config.evaluation.max_episode_steps = 2
    with Arena(config, {"all": ("agent_0", "agent_1")}) as arena:
        arena.play({"all": Player("at random", "all", random)}, [7, 8])
        assert [note.partition(":")[0] for note in arena.notes()] == [
            "2 of the episodes played here"
        ]
    assert {agent: returns[0] for agent, returns in found.items()} == expected.returns
