import getpass
import json
import os
import platform
import subprocess
from datetime import datetime
from pathlib import Path

import gymnasium
import pytest
from packaging.requirements import Requirement

from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.errors import NotARunDirectory, OtherFormat
from muxrl.orchestrator.records import run_directory
from muxrl.orchestrator.records.run_directory import RunDirectory, make_folder
from muxrl.orchestrator.storage.folders import next_path
from muxrl.orchestrator.storage.versions import (
    read_versions,
    software_versions,
    version_notes,
    versions_used,
)

NOW = datetime(2026, 11, 21, 9, 8, 7)


def test_same_name_in_the_same_second_never_overwrites(tmp_path: Path) -> None:
    names = [RunDirectory.create(tmp_path / "runs", "tag", NOW).name for _ in range(3)]
    assert names == ["tag-20261121-090807", "tag-20261121-090807-2", "tag-20261121-090807-3"]


def test_all_folders_exist_and_open_finds_them_again(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path, "tag", NOW)
    folders = {folder.name for folder in made.path.iterdir()}
    assert folders == {"checkpoints", "logs", "metrics", "plots", "tensorboard"}
    assert RunDirectory.open(made.path) == made


def test_a_folder_that_is_no_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NotARunDirectory, match="no such folder"):
        RunDirectory.open(tmp_path / "absent")
    (tmp_path / "chase-1").mkdir()
    for missing in (tmp_path / "chase-2", Path(f"{tmp_path}/chse-1/")):
        with pytest.raises(NotARunDirectory, match="folder; did you mean 'chase-1'"):
            RunDirectory.open(missing)
    with pytest.raises(NotARunDirectory, match=r"no such folder$"):
        RunDirectory.open(tmp_path / "nowhere" / "chase-1")
    with pytest.raises(NotARunDirectory, match="the parent of runs"):
        RunDirectory.open(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(NotARunDirectory, match="'muxrl serve' keeps the checkpoints of one server"):
        RunDirectory.open(tmp_path)
    (tmp_path / "trials.jsonl").touch()
    with pytest.raises(NotARunDirectory, match="the directory of a sweep: 'muxrl compare' shows"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"no plan\.json; did the run stop before its servers were planned"),
        ("{", r"plan\.json is not JSON"),
        ('{"servers": 3}', r"plan\.json has no servers"),
        ("[]", r"plan\.json has no servers"),
        ('{"servers": {"a": {}}}', r"plan\.json has .* no algorithm or agents"),
    ],
)
def test_a_plan_that_cannot_be_read_is_named(
    tmp_path: Path, content: str | None, told: str
) -> None:
    run = RunDirectory.create(tmp_path, "tag", NOW)
    if content is not None:
        (run.path / "plan.json").write_text(content)
    with pytest.raises(NotARunDirectory, match=told):
        run.read_plan()


def test_a_newer_muxrl_s_records_are_refused(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "tag", NOW)
    run.write_plan({"servers": {}, "assignment": "", "seed": 1})
    written = run.path / "plan.json"
    written.write_text(written.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(OtherFormat) as refused:
        RunDirectory.open(run.path)
    assert str(refused.value) == (
        f"{run.path} was made by a newer muxrl (format 2; this one reads up to 1): update muxrl"
    )


def test_versions_name_software_but_no_user_or_machine(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "tag", NOW)
    versions = run.write_versions()
    assert json.loads((run.path / "versions.json").read_text()) == versions
    assert set(versions) == {
        *("python", "muxrl", "ray", "torch", "numpy", "gymnasium", "platform", "git_commit"),
        *("user_commit", "environment", "environment_source", "hardware"),
    }
    assert versions["hardware"].startswith(f"{os.cpu_count()} x ")
    packages = (run.path / "packages.txt").read_text().splitlines()
    assert f"numpy=={versions['numpy']}" in packages
    assert all(Requirement(line).specifier for line in packages)
    words = " ".join(str(value) for value in versions.values()).replace("-", " ").split()
    assert getpass.getuser() not in words
    assert platform.node() not in words


def test_versions_of_each_beginning_of_a_run_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path, "tag", NOW)
    for ray, resumed_at in (("2.59.0", None), ("2.60.0", 400), ("2.60.0", 900)):
        made_with = {"ray": ray, "git_commit": None}
        monkeypatch.setattr(run_directory, "software_versions", lambda _, of=made_with: of.copy())
        run.write_versions(resumed_at)
    assert read_versions(run.path) == {
        "ray": "2.60.0",
        "git_commit": None,
        "earlier": [
            {"ray": "2.59.0", "git_commit": None, "until_env_steps": 400},
            {"ray": "2.60.0", "git_commit": None, "until_env_steps": 900},
        ],
    }
    assert versions_used(run.path) == {"ray": ["2.60.0", "2.59.0"]}


def test_changes_of_the_user_s_code_and_environment_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "game_of_mine.py"
    module.write_text("LENGTH = 1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "begin")
    clean = software_versions("game_of_mine:Game")
    module.write_text("LENGTH = 22\n")
    dirty = software_versions("game_of_mine:Game")
    assert dirty["user_commit"] == f"{clean['user_commit']}-dirty"
    assert clean["environment"] is None
    assert None not in (clean["environment_source"], dirty["environment_source"])
    (note,) = version_notes([{k: [v] for k, v in of.items() if v} for of in (clean, dirty)])
    assert note == (
        "the runs were made with different versions of the environment's source: "
        + ", ".join(sorted(str(v["environment_source"]) for v in (clean, dirty)))
        + f"; of the folder it was started in: {str(clean['user_commit'])[:10]}, "
        f"{str(clean['user_commit'])[:10]}-dirty"
    )


@pytest.mark.parametrize(
    ("env", "package"),
    [
        ("pettingzoo.classic.rps_v2:parallel_env", "pettingzoo "),
        ("gymnasium:CartPole-v1", None),  # it is recorded by its own name
        ("external", None),
        ("nobody_has_this:Env", None),
        ("__main__:Env", None),
    ],
)
def test_the_package_of_an_environment_is_recorded(env: str, package: str | None) -> None:
    gymnasium.make("CartPole-v1").close()
    found = software_versions(env)["environment"]
    assert found is None if package is None else str(found).startswith(package)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_run_without_readable_versions_has_none(tmp_path: Path, content: str | None) -> None:
    run = RunDirectory.create(tmp_path, "tag", NOW)
    if content is not None:
        (run.path / "versions.json").write_text(content)
    assert versions_used(run.path) == {}
    assert run.write_versions(400)["earlier"] == [{"until_env_steps": 400}]


def test_numbers_of_folders_begin_at_two_and_skip_existing_ones(tmp_path: Path) -> None:
    assert next_path(tmp_path, "a", ".json") == tmp_path / "a.json"
    (tmp_path / "a.json").touch()
    (tmp_path / "a-2.json").touch()
    assert next_path(tmp_path, "a", ".json") == tmp_path / "a-3.json"


def test_a_dot_in_a_name_does_not_begin_a_suffix(tmp_path: Path) -> None:
    made = [RunDirectory.create(tmp_path / "runs", "lr-0.1", NOW).name for _ in range(3)]
    assert made == [f"lr-0.1-{NOW:%Y%m%d-%H%M%S}{number}" for number in ("", "-2", "-3")]


def test_a_run_records_the_defaults_of_its_algorithms(tmp_path: Path) -> None:
    config = load_config("chase", ["servers.a2c.algorithm=RANDOM", "servers.a2c.settings={}"])
    made = make_folder(prepare(config), tmp_path / "run").read_plan().servers
    assert made["qmix"].defaults["settings"]["lr"] == 0.0005
    assert made["qmix"].defaults["settings"]["epsilon"] == [[0, 1.0], [50_000, 0.05]]
    assert made["ppo"].defaults["settings"]["clip_param"] == 0.3
    assert made["ppo"].defaults["model"]["fcnet_hiddens"] == [64, 64]
    assert made["a2c"].defaults == {"settings": {}}
