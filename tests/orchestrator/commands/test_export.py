"""`muxrl export` writes policies, compares each with its server, and says what it cannot write."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.orchestrator.commanded import Muxrl
from tests.servers.export.untrained import save

from muxrl.orchestrator.config import load_config, prepare, to_yaml
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE

PREDATORS = [f"predator_{i}" for i in range(3)]
CHASE = {
    "simulation": {"env": "muxrl.experiments.simulations.torus_chase:TorusChase"},
    "servers": {
        "qmix": {"algorithm": "QMIX", "agents": PREDATORS, "groups": {"pack": PREDATORS}},
        "ppo": {"agents": ["prey_0"], "model": {"use_lstm": True, "lstm_cell_size": 8}},
        "a2c": {"algorithm": "A2C", "agents": ["prey_1"]},
    },
}
RANDOM = {"servers.ppo.algorithm": "RANDOM", "servers.ppo.model": {}}


def write(run: RunDirectory, changes: dict[str, Any], has_policies: bool = True) -> None:
    """Writes the run's config, and checkpoints of servers that have not learned."""
    config = load_config(CHASE, changes)
    run.write_config(to_yaml(config))
    for server_id, plan in (
        prepare(config, needs_stop=False).servers.items() if has_policies else ()
    ):
        save(plan, run.checkpoints / server_id / "last")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    torch.manual_seed(0)
    run = RunDirectory.create_at(tmp_path / "run")
    write(run, {})
    return run


def test_a_file_that_differs_is_not_kept(run: RunDirectory, muxrl: Muxrl) -> None:
    told = muxrl("export", run.path, "--server", "a2c", "--tolerance", "1e-12", code=1).err
    assert told.startswith("muxrl: server 'a2c': policy 'default' (A2C) was not exported: ")
    assert "a larger --tolerance allows" in told
    assert not list(run.path.rglob("*.onnx"))


def test_a_server_that_cannot_be_exported_does_not_keep_others_from_it(
    run: RunDirectory, muxrl: Muxrl
) -> None:
    write(run, RANDOM, has_policies=False)
    (run.checkpoints / "qmix" / "last" / ABOUT_FILE).unlink()
    told = muxrl("export", run.path, code=2)
    assert told.err.startswith("muxrl: server 'qmix': '")
    assert told.err.endswith("is no checkpoint: it has no muxrl.json\n")
    assert "a2c/default.onnx" in told.out
    assert [path.parent.name for path in run.path.rglob("*.onnx")] == ["a2c"]


@pytest.mark.parametrize("replace_by", ["", "dqn"])
def test_of_a_shadow_and_its_server_only_the_one_that_acts_is_written(
    replace_by: str, run: RunDirectory, muxrl: Muxrl
) -> None:
    shadow = {"algorithm": "DQN", "shadow": "a2c"}
    # Recurrent policies take seconds to export.
    plain = {"servers.ppo.model": {}} if replace_by else {}
    write(run, {"servers.dqn": shadow, "servers.a2c.replace_by": replace_by, **plain})
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
def test_the_reason_is_given_if_no_policy_can_be_written(
    arguments: list[str], reason: str, run: RunDirectory, muxrl: Muxrl
) -> None:
    write(run, RANDOM, has_policies=False)
    assert muxrl("export", run.path, *arguments, code=2).err == f"muxrl: {reason}\n"
    assert not (run.path / "onnx").exists()


def test_without_its_extra_the_message_says_what_to_install(
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
