"""`muxrl runs`, `logs` and `stop` print what the tests of `manage` read from the folders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.manage.filled import fill

from muxrl.orchestrator.commands import runs
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile

KILLED = "killed-20261122-000000"
TAG = "runs/tag-20261121-000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def test_a_row_for_each_server_says_how_the_run_stands(folder: Path, muxrl: Muxrl) -> None:
    rows = [line.split() for line in muxrl("runs", folder).out.splitlines()]
    assert rows[4:10] == [
        [KILLED, "interrupted", "10", *rows[4][-2:]],
        ["fox", "(A2C):", "fox_0,", "fox_1"],
        [TAG, "done", "1,234", *rows[6][-2:]],
        ["wolves", "(QMIX):", "wolf_0,", "wolf_1", "5.50"],
        ["sheep", "(PPO):", "sheep", "−1.00"],
        ["tuned-20261120-000000", "waiting", "77", *rows[9][-2:]],
    ]
    assert rows[-1][:2] == ["foreign:", "broken:"]


def test_the_table_of_runs_fits_into_80_columns(
    folder: Path, muxrl: Muxrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    plain = re.sub("\x1b\\[[0-9;]*m", "", muxrl("runs", folder).out)
    lines = plain.splitlines()
    table = lines[: max(n for n, line in enumerate(lines) if "tuned" in line)]
    assert max(map(len, table)) <= 80
    for whole in (KILLED, TAG, "interrupted", "1,234", "5.50", "−1.00"):
        assert any(whole in line for line in table), f"{whole} is broken or cut off"


def test_programs_get_all_fields_of_a_run(folder: Path, muxrl: Muxrl) -> None:
    entries = json.loads(muxrl("runs", folder, "--json").out)
    assert [(e["name"], e["kind"], e.get("state")) for e in entries] == [
        (KILLED, "run", "interrupted"),
        (TAG, "run", "done"),
        ("tuned-20261120-000000", "sweep", "waiting"),
        ("foreign", "broken", None),
    ]
    killed, done, sweep, foreign = entries
    assert (killed["path"], killed["resumable_at"]) == (str(folder / KILLED), None)
    assert [server["evaluated"] for server in killed["servers"]] == [None]
    assert done["env_steps"] == 1_234
    evaluated = {server["id"]: server["evaluated"] for server in done["servers"]}
    assert list(evaluated.items()) == [("wolves", 5.5), ("sheep", -1.0)]
    assert sweep["counts"] == {"done": 1, "waiting": 1}
    assert (sweep["env_steps"], sweep["templates"]) == (77, ["dqn", "sac"])
    assert "it has no plan.json" in foreign["cause"]


def test_a_folder_without_runs_and_a_missing_folder_are_told_apart(
    tmp_path: Path, muxrl: Muxrl
) -> None:
    assert f"no run or sweep in '{tmp_path}'" in muxrl("runs", tmp_path).out
    assert "there is no folder" in muxrl("runs", tmp_path / "nowhere", code=2).err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400 * 2.5, "2 d")],
)
def test_an_age_is_one_number(seconds: float, text: str) -> None:
    assert runs._age(seconds) == text


def test_a_pipe_that_is_closed_early_is_no_error(folder: Path) -> None:
    run = RunDirectory(folder / TAG)
    run.log("ppo").write_text("a line\n" * 100_000)
    command = f"{sys.executable} -m muxrl logs {run.path} ppo | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("a line\n0\n", "")


def test_log_lines_of_several_processes_name_their_process(folder: Path, muxrl: Muxrl) -> None:
    run = RunDirectory(folder / TAG)
    run.log("ppo").write_text("one\ntwo\n")
    run.log("evaluation").write_text("begun\n")
    assert muxrl("logs", run.path, "-n", "1").out == "evaluation | begun\nppo        | two\n"
    assert muxrl("logs", run.path, "ppo", "-f").out == "one\ntwo\n"
    assert "did you mean 'ppo'?" in muxrl("logs", run.path, "pppo", code=2).err


def test_stopping_what_cannot_be_stopped_is_an_error(folder: Path, muxrl: Muxrl) -> None:
    StatusFile(RunDirectory(folder / TAG)).enter("done", 7)
    assert muxrl("stop", folder / TAG, code=2) == (
        "",
        f"muxrl: run '{folder / TAG}' is over: done, at 7 env steps\n",
    )
