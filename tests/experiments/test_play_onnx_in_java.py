"""`PlayOnnx.java`: ONNX Runtime's Java API acts as Python's does, to the last bit of a return."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.servers.export.untrained import save

from muxrl.client.onnx_policy import load_onnx
from muxrl.experiments.examples.play_onnx import play
from muxrl.experiments.simulations.locked_doors import LockedDoors
from muxrl.orchestrator import cli
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare, to_yaml
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.servers.config import ServerConfig

ROOT = Path(__file__).parents[2]
AGENTS = ["agent_0", "agent_1"]
EPISODES = 15


class Timetable(LockedDoors):
    """A game in which an episode's number decides which doors are open, as in `PlayOnnx.see`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode = seed or 0
        return super().reset(seed, options)

    def _draw(self) -> None:
        for row in range(len(AGENTS)):
            sets = 1 + (7 * self._episode + 3 * self._t + 5 * row) % EPISODES
            self._open[row] = [sets >> door & 1 for door in range(self._num_doors)]


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gives the class path of the compiled program and ONNX Runtime."""
    jar = os.environ.get("ONNXRUNTIME_JAR")
    if jar is None or shutil.which("javac") is None:
        pytest.skip("needs javac, and in ONNXRUNTIME_JAR the path of ONNX Runtime's jar")
    folder = tmp_path_factory.mktemp("classes")
    sources = [ROOT / "client/standalone/Json.java", ROOT / "experiments/examples/PlayOnnx.java"]
    command = ["javac", "--release", "11", "-Xlint:all", "-Werror", "-cp", jar, "-d", folder]
    subprocess.run([*command, *sources], check=True, timeout=60)
    return os.pathsep.join([str(folder), jar])


def run_java(class_path: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "PlayOnnx", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def export(servers: dict[str, ServerConfig], folder: Path) -> Path:
    """Exports servers that have not learned; returns the folder of the exported files."""
    torch.manual_seed(0)
    doors = SimulationConfig("muxrl.experiments.simulations.locked_doors:LockedDoors")
    config = ExperimentConfig("doors", simulation=doors, servers=servers)
    run = RunDirectory.create_at(folder / "run")
    run.write_config(to_yaml(config))
    for server_id, plan in prepare(config, needs_stop=False).servers.items():
        save(plan, run.checkpoints / server_id / "last")
    assert cli.main(["export", str(run.path)]) == 0
    return run.path / "onnx"


@pytest.mark.parametrize(
    "servers",
    [
        # A team: numbered members with masks, last actions and a GRU's state.
        {
            "team": ServerConfig(
                "QMIX", AGENTS, groups={"team": AGENTS}, settings={"hidden_dim": 16}
            )
        },
        # A file for each agent, one of which has the two states of an LSTM.
        {
            "ppo": ServerConfig("PPO", AGENTS[:1], model={"use_lstm": True, "lstm_cell_size": 8}),
            "dqn": ServerConfig("DQN", AGENTS[1:]),
        },
    ],
    ids=["team", "apart"],
)
def test_java_earns_what_python_earns(
    servers: dict[str, ServerConfig], class_path: str, tmp_path: Path
) -> None:
    folder = export(servers, tmp_path)
    played = [play(Timetable(), load_onnx(folder), episode) for episode in range(EPISODES)]
    assert len({tuple(episode.values()) for episode in played}) > 1

    done = run_java(class_path, folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for server in servers.values():
        assert any(line.startswith(f"{server.algorithm} acts for {{agent_") for line in lines)
    told = [line for line in lines if line[0].isdigit()]
    assert told == [
        f"{i} {{{', '.join(f'{agent}={earned}' for agent, earned in episode.items())}}}"
        for i, episode in enumerate(played)
    ]
    means = {agent: sum(episode[agent] for episode in played) / EPISODES for agent in AGENTS}
    assert lines[-1] == "mean return: " + ", ".join(f"{a} {mean}" for a, mean in means.items())


def test_files_of_another_game_are_refused_by_name(class_path: str, tmp_path: Path) -> None:
    folder = export({"ppo": ServerConfig("PPO", AGENTS)}, tmp_path)
    done = run_java(class_path, folder.parent / "checkpoints")
    assert done.returncode == 1
    assert "act for []; this game has [agent_0, agent_1]" in done.stderr
