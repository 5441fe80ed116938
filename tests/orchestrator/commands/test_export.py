"""`muxrl export`: which policies it writes, each compared with its server; and what it refuses."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.orchestrator.commanded import Muxrl
from tests.servers.export.untrained import save

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare, to_yaml
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.config import ServerConfig

PREDATORS = [f"predator_{i}" for i in range(3)]
CHASE = ExperimentConfig(
    "chase",
    simulation=SimulationConfig("muxrl.experiments.simulations.torus_chase:TorusChase"),
    servers={
        "qmix": ServerConfig(
            "QMIX", PREDATORS, groups={"pack": PREDATORS}, settings={"hidden_dim": 16}
        ),
        "ppo": ServerConfig("PPO", ["prey_0"], model={"use_lstm": True, "lstm_cell_size": 8}),
        "a2c": ServerConfig("A2C", ["prey_1"]),
    },
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run whose servers have not learned."""
    torch.manual_seed(0)
    run = RunDirectory.create_at(tmp_path / "run")
    run.write_config(to_yaml(CHASE))
    for server_id, plan in prepare(CHASE, needs_stop=False).servers.items():
        save(plan, run.checkpoints / server_id / "last")
    return run


def test_a_file_that_differs_is_not_kept(run: RunDirectory, muxrl: Muxrl) -> None:
    told = muxrl("export", run.path, "--server", "a2c", "--tolerance", "1e-12", code=1).err
    assert told.startswith("muxrl: server 'a2c': policy 'default' (A2C) was not exported: ")
    assert "allow for them with --tolerance" in told
    assert not list(run.path.rglob("*.onnx"))


def test_one_server_that_cannot_be_exported_keeps_no_other_from_it(
    run: RunDirectory, muxrl: Muxrl
) -> None:
    servers = {**CHASE.servers, "ppo": ServerConfig("RANDOM", ["prey_0"])}
    run.write_config(to_yaml(dataclasses.replace(CHASE, servers=servers)))
    (run.checkpoints / "qmix" / "last" / ABOUT_FILE).unlink()
    told = muxrl("export", run.path, code=2)
    assert told.err.startswith("muxrl: server 'qmix': '")
    assert told.err.endswith("is no checkpoint: it has no muxrl.json\n")
    assert "a2c/default.onnx" in told.out
    assert [path.parent.name for path in run.path.rglob("*.onnx")] == ["a2c"]


@pytest.mark.parametrize("replace_by", ["", "dqn"])
def test_of_a_shadow_and_its_server_who_acts_is_written(
    replace_by: str, run: RunDirectory, muxrl: Muxrl
) -> None:
    a2c = ServerConfig("A2C", ["prey_1"], replace_by=replace_by)
    servers = {"a2c": a2c, "dqn": ServerConfig("DQN", shadow="a2c")}
    config = dataclasses.replace(CHASE, servers={**CHASE.servers, **servers})
    run.write_config(to_yaml(config))
    for server_id, plan in prepare(config, needs_stop=False).servers.items():
        save(plan, run.checkpoints / server_id / "last")
    out = muxrl("export", run.path).out
    assert f"{run.path}/onnx/qmix/default.onnx\n  in:  observation [8] float32" in out
    assert out.count("acts as the server does on 1,0") == 3
    written = {path.parent.name for path in run.path.rglob("*.onnx")}
    assert written == {"qmix", "ppo", replace_by or "a2c"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--server", "qmx"], "run 'run' has no server 'qmx'; did you mean 'qmix'?"),
        (["--server", "ppo"], "server 'ppo' is RANDOM, which learns no policy"),
        (
            ["--checkpoint", "best"],
            "run 'run' has no checkpoint 'best' of server 'qmix'; it has last",
        ),
    ],
)
def test_what_it_cannot_write_it_names(
    arguments: list[str], reason: str, run: RunDirectory, muxrl: Muxrl
) -> None:
    servers = {**CHASE.servers, "ppo": ServerConfig("RANDOM", ["prey_0"])}
    run.write_config(to_yaml(dataclasses.replace(CHASE, servers=servers)))
    assert muxrl("export", run.path, *arguments, code=2).err == f"muxrl: {reason}\n"
    assert not (run.path / "onnx").exists()


def test_without_its_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, muxrl: Muxrl
) -> None:
    monkeypatch.setattr(
        "muxrl.orchestrator.commands.command.find_spec",
        lambda module: None if module == "onnxruntime" else find_spec(module),
    )
    assert muxrl("export", "run", code=2).err == (
        "muxrl: 'export' needs onnxruntime, not installed here; "
        "they come with: pip install 'muxrl[export]'\n"
    )
