"""How an ended run is resumed: which settings may change, from which checkpoint, by one process."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.faults.hosted import Host
from tests.faults.started import PATIENCE_S
from tests.orchestrator.storage.test_checkpoints import write as written

from muxrl import RunResult
from muxrl.orchestrator import user_modules
from muxrl.orchestrator.config import (
    ExperimentConfig,
    from_yaml,
    load_config,
    prepare,
    to_yaml,
)
from muxrl.orchestrator.errors import CannotResume, ConfigError, RunIsRunning
from muxrl.orchestrator.evaluations.filming import recorded_files
from muxrl.orchestrator.launch import whole_run
from muxrl.orchestrator.launch.resuming import (
    find_checkpoint,
    how_to_resume,
    load_resumed_config,
    locked,
    resumed_experiment,
    set_episodes_aside,
    write_resumed_config,
)
from muxrl.orchestrator.records.run_directory import TRIALS_FILE, RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
)
from muxrl.orchestrator.storage.versions import read_versions
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds
from muxrl.orchestrator.user_modules import user_folders
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE

CHASE = "muxrl.experiments.simulations.torus_chase:TorusChase"


def chase() -> ExperimentConfig:
    """Returns an experiment of three servers in which nothing depends on the clock."""
    each = "min_sample_timesteps_per_iteration: 1"  # a record after each batch
    return load_config(
        {"name": "chase", "simulation": {"env": CHASE}, "trackers": [], "metrics_interval_s": 0.1},
        [
            "servers.qmix={algorithm: QMIX, agents: [predator_*], while_learning: wait}",
            "servers.qmix.groups.predators=[predator_*]",
            f"servers.qmix.settings={{agent: mlp, epsilon: [[0, 1.0], [2000, 0.05]], {each}}}",
            "servers.ppo={agents: [prey_0], settings: {train_batch_size_per_learner: 200}}",
            f"servers.ppo.settings={{minibatch_size: 50, num_epochs: 2, {each}}}",
            "servers.other={algorithm: RANDOM, agents: [prey_1]}",
            "stop.env_steps=1500",
            "evaluation.final_num_episodes=0",
        ],
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create_at(tmp_path / "chase")
    run.write_config(to_yaml(chase()))
    return run


# --- its config -----------------------------------------------------------------------------


def test_a_resumed_run_takes_overrides_of_settings_that_may_change(folder: RunDirectory) -> None:
    config = load_resumed_config(
        folder,
        ["stop.env_steps=9000", "servers.ppo.settings.lr=0.1", "simulation.num_processes=2",
         "simulation.gateway.port=9900", "simulation.command=[sim, '{gateway}']"],
    )  # fmt: skip
    assert config.stop.env_steps == 9_000
    assert config.servers["ppo"].settings["lr"] == 0.1
    assert config.servers["ppo"].settings["num_epochs"] == 2


def test_a_resumed_run_finds_the_user_s_modules_from_any_folder(
    folder: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_modules, "_added", [])
    before = user_folders()
    StatusFile(folder)
    status = folder.path / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "folders": [str(own)]}))
    load_resumed_config(folder, ["stop.env_steps=9000"])
    assert user_folders() == [str(own), *before]
    assert str(own) in sys.path


def test_earlier_configs_and_their_changes_stay_recorded(folder: RunDirectory) -> None:
    config = chase()
    config.servers["ppo"].initialize_from = "another/run"
    folder.write_config(to_yaml(config))
    assert folder.changed_settings() == {}
    for env_steps, change in ((1_000, "stop.env_steps=9000"), (2_000, "servers.ppo.settings.lr=1")):
        again = load_resumed_config(folder, [change])
        assert again.servers["ppo"].initialize_from == ""
        write_resumed_config(folder, again, env_steps)
        assert folder.read_config().servers["ppo"].initialize_from == "another/run"
    write_resumed_config(folder, load_resumed_config(folder), 3_000)
    assert sorted(path.name for path in folder.path.glob("config*")) == [
        "config-until-1000.yaml", "config-until-2000.yaml", "config.yaml",
    ]  # fmt: skip
    told = {"servers.ppo.settings.lr": "its default until 2,000 env steps, then 1"}
    # Stop.env_steps shapes no result, so it is not among the changed settings.
    assert folder.changed_settings() == told
    write_resumed_config(folder, load_resumed_config(folder, ["servers.ppo.settings.lr=2"]), 4_000)
    told = dict.fromkeys(told, "its default until 2,000 env steps, 1 until 4,000 env steps, then 2")
    assert folder.changed_settings() == told


def test_the_terminal_says_what_a_resume_has_changed(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = prepare(load_resumed_config(folder, ["servers.ppo.settings.lr=0.1"]))
    manifest = Manifest(1_000, 0.0, "", None, {}, {}, {}, {})
    monkeypatch.setattr(whole_run, "resume_at_checkpoint", lambda *_: (experiment, manifest))
    monkeypatch.setattr(whole_run, "_run", lambda *_: None)
    monkeypatch.setattr(RunDirectory, "note_promoted", lambda *_: None)
    console = Console(file=io.StringIO(), width=40)
    whole_run.run_experiment(experiment, folder, is_resumed=True, console=console)
    assert isinstance(console.file, io.StringIO)
    told = "servers.ppo.settings.lr was its default until 1,000 env steps, then 0.1\n"
    assert console.file.getvalue() == told


def test_configs_from_after_the_checkpoint_are_dropped(folder: RunDirectory) -> None:
    """The run is resumed twice at the same checkpoint, and then at an older one."""

    def resume(env_steps: int, lr: float) -> dict[str, float]:
        config = load_resumed_config(folder, [f"servers.ppo.settings.lr={lr}"])
        write_resumed_config(folder, config, env_steps)
        return {
            path.name: from_yaml(path.read_text(), path.name).servers["ppo"].settings.get("lr", 0.0)
            for path in sorted(folder.path.glob("config*"))
        }

    first = chase().servers["ppo"].settings.get("lr", 0.0)
    former = {"config-until-1000.yaml": first}
    assert resume(1_000, 0.1) == {**former, "config.yaml": 0.1}
    assert resume(1_000, 0.2) == {**former, "config.yaml": 0.2}
    former["config-until-3000.yaml"] = 0.2
    assert resume(3_000, 0.3) == {**former, "config.yaml": 0.3}
    assert resume(2_000, 0.4) == {
        "config-until-1000.yaml": first, "config-until-2000.yaml": 0.2, "config.yaml": 0.4,
    }  # fmt: skip


@pytest.mark.parametrize(
    "override",
    [
        "servers.ppo.algorithm=A2C",
        "servers.more.algorithm=RANDOM",
        "simulation.kwargs.max_cycles=9",
        "servers.qmix.model.fcnet_hiddens=[8]",
    ],
)
def test_overrides_of_settings_that_must_not_change_are_refused(
    folder: RunDirectory, override: str
) -> None:
    """docs/config.md names the settings that may change, and is compared with the schema."""
    with pytest.raises(CannotResume) as refused:
        load_resumed_config(folder, [override])
    key = override.partition("=")[0]
    assert f"a resumed run cannot change {key.removesuffix('.algorithm')}" in str(refused.value)
    assert f".initialize_from={folder.path}" in str(refused.value)


def test_a_token_must_be_given_again(folder: RunDirectory) -> None:
    config = chase()
    config.servers["ppo"].token = "a-secret-of-the-team"
    folder.write_config(to_yaml(config))
    with pytest.raises(ConfigError, match=r"servers.ppo.token: is left open"):
        load_resumed_config(folder)
    again = load_resumed_config(folder, ["servers.ppo.token=a-secret-of-the-team"])
    assert again.servers["ppo"].token == "a-secret-of-the-team"


def test_a_run_that_is_done_needs_more_to_do(folder: RunDirectory) -> None:
    config = chase()
    for steps, ended_by in ((2_000, "stop.time_s"), (1_500, "stop.env_steps or stop.time_s")):
        config.stop.env_steps, config.stop.time_s = steps, 300.0
        folder.write_config(to_yaml(config))
        StatusFile(folder).enter("done", 1_500)
        with pytest.raises(CannotResume, match=rf"1,500 env .*to continue it, raise {ended_by}$"):
            load_resumed_config(folder)
    assert load_resumed_config(folder, ["stop.env_steps=3000"]).stop.env_steps == 3_000


# --- its checkpoint -------------------------------------------------------------------------


def write(folder: RunDirectory, env_steps: int) -> Path:
    checkpoints = CheckpointFolder(folder.checkpoints)
    return written(checkpoints, env_steps, learning=("ppo", "qmix"), fixed="other")


def test_a_run_is_resumed_from_its_newest_checkpoint(folder: RunDirectory) -> None:
    for env_steps in (900, 1_000):
        write(folder, env_steps)
    place, manifest, damage = find_checkpoint(folder)
    assert (place.name, manifest.env_steps, damage) == ("1000", 1_000, [])
    servers = resumed_experiment(prepare(chase()), place, manifest).servers
    assert servers["ppo"].resume_from == str(place / "ppo")
    assert servers["other"].resume_from == ""


@pytest.mark.parametrize("is_copied", [False, True])
def test_recorded_episodes_from_after_the_checkpoint_are_set_aside(
    folder: RunDirectory, is_copied: bool
) -> None:
    """The episodes' times decide; in a copy of the run, whose times differ, their seeds do."""
    place = write(folder, 1_000)
    written = (place / MANIFEST_FILE).stat().st_mtime
    expected = set()
    for name, num_begun in (("simulation-0", 2), ("simulation-1", 1), ("simulation-2", 0)):
        (folder.episodes / name).mkdir(parents=True)
        seeds = EpisodeSeeds.of_process(7, name)
        for i in range(4):
            path = folder.episodes / name / f"{next(seeds)}.parquet"
            path.write_bytes(b"")
            ended = written + (60.0 if i >= num_begun else -60.0)
            os.utime(path, (ended, ended))
            expected.add(path if i < num_begun else path.with_name(f"{path.name}.unused"))
    if is_copied:
        for path in (place / MANIFEST_FILE, *folder.episodes.glob("*/*")):
            os.utime(path, (written + 3_600.0, written + 3_600.0))
    begun = {"simulation-0": 2, "simulation-1": 1}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = replace(Manifest.read(place), num_episodes_begun=begun, written_at=now)
    set_episodes_aside(folder, place, manifest, 7)
    assert set(folder.episodes.glob("*/*")) == expected
    assert len(recorded_files(folder.path)) == 3


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(folder: RunDirectory) -> None:
    write(folder, 900)
    (write(folder, 1_000) / "qmix" / "deep" / "state.pkl").write_text("weighty")
    (write(folder, 1_100) / MANIFEST_FILE).write_text("{")
    place, manifest, damage = find_checkpoint(folder)
    assert (place.name, manifest.env_steps) == ("900", 900)
    assert "1100/manifest.json cannot be read" in damage[0]
    assert "1000/qmix/deep/state.pkl has changed since it was written" in damage[1]


def test_a_run_without_a_checkpoint_is_refused_with_how_to_get_one(folder: RunDirectory) -> None:
    with pytest.raises(CannotResume, match=r"no checkpoint to continue.*checkpoint.interval_s"):
        find_checkpoint(folder)
    (write(folder, 1_000) / "ppo" / "deep" / "state.pkl").unlink()
    with pytest.raises(
        CannotResume, match=r"no whole checkpoint: .*ppo/deep/state.pkl cannot be read"
    ):
        find_checkpoint(folder)


def test_a_failure_names_the_command_that_goes_on(tmp_path: Path) -> None:
    folder = RunDirectory.create_at(tmp_path / "sweep" / "runs" / "trial")
    assert how_to_resume(folder) == "it has no whole checkpoint, so it cannot be resumed"
    write(folder, 1_000)
    told = f"'muxrl launch --resume {folder.path}' continues from its checkpoint at 1,000 env"
    assert told in how_to_resume(folder)
    sweep = folder.path.resolve().parent.parent
    (sweep / TRIALS_FILE).write_text("")
    told = f"'muxrl sweep {sweep} --resume' continues from its checkpoint at 1,000"
    assert told in how_to_resume(folder)


def test_only_one_process_at_a_time_runs_in_a_directory(folder: RunDirectory) -> None:
    StatusFile(folder)
    told = pytest.raises(RunIsRunning, match=r"going on \(pid \d+ on")
    with locked(folder), told, locked(folder):
        pass
    with locked(folder):
        pass


# --- the promise ----------------------------------------------------------------------------


def records(run: Path, server_id: str) -> list[dict[str, Any]]:
    text = (run / "metrics" / f"{server_id}.jsonl").read_text()
    return [json.loads(row) for row in text.splitlines()]


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
# By day: servers/learned/test_resume.py, to the bit; commands/test_reproduce.py, a whole run;
# faults/test_resume_faults.py, the files.
@pytest.mark.night
def test_a_run_that_was_cut_learns_what_an_uninterrupted_one_does(
    tmp_path: Path, host: Host
) -> None:
    """With one simulation and servers that wait while they learn, losses are equal to the bit."""
    config = tmp_path / "chase.yaml"
    config.write_text(to_yaml(chase()))

    def run(name: str, *arguments: str) -> RunResult:
        launched, _ = host.launch(["launch", *arguments, "--no-progress"])
        assert launched.wait(PATIENCE_S) == 0, launched.communicate()[0]
        return RunResult.read(tmp_path / name)

    def begin(name: str, *overrides: str) -> RunResult:
        return run(name, str(config), "--run-dir", str(tmp_path / name), *overrides)

    whole, cut = begin("whole"), begin("cut", "stop.env_steps=600")
    folder = RunDirectory.open(cut.run_dir)
    resumed_at = find_checkpoint(folder)[1].env_steps
    resumed = run("cut", "--resume", str(folder.path), "stop.env_steps=1500")
    assert [whole.outcome, cut.outcome, resumed.outcome] == ["done"] * 3, resumed.problem
    assert 600 <= cut.env_steps < 1_500 <= min(whole.env_steps, resumed.env_steps)
    for server_id in ("qmix", "ppo"):
        before, after = records(whole.run_dir, server_id), records(resumed.run_dir, server_id)
        num = min(len(before), len(after))
        assert num > 5
        assert [r["iteration"] for r in after] == list(range(1, len(after) + 1))
        for key in ("iteration", "loss", "learner", "weights_seq_no", "episode_return_mean"):
            assert [r[key] for r in after[:num]] == [r[key] for r in before[:num]], key
    versions = read_versions(folder.path)
    (began_with,) = versions.pop("earlier")
    assert began_with == {**versions, "until_env_steps": resumed_at}


def test_a_run_from_before_scaling_existed_is_resumed_unscaled(folder: RunDirectory) -> None:
    path = folder.path / "config.yaml"
    given = load_resumed_config(folder).servers.values()
    assert {server.scale_observations for server in given} == {"images"}
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "scale_observations" not in line))
    config = load_resumed_config(folder)
    assert {s.scale_observations for s in config.servers.values()} == {"none"}
    with pytest.raises(CannotResume, match=r"cannot change servers\.ppo\.normalize_obs"):
        load_resumed_config(folder, ["servers.ppo.normalize_observations=true"])
