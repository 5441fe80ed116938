"""`muxrl runs`, `logs` and `stop`: what they print; what they read is tested with the folders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.orchestrator.manage.filled import fill

from muxrl.orchestrator import cli
from muxrl.orchestrator.commands import runs
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile

KILLED = "killed-20261122-000000"
TAG = "runs/tag-20261121-000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def test_a_row_for_each_server_says_how_the_run_stands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["runs", str(folder)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[4:10] == [
        [KILLED, "interrupted", "10", *rows[4][-2:]],
        ["fox", "(A2C):", "fox_0,", "fox_1"],
        [TAG, "done", "1,234", *rows[6][-2:]],
        ["wolves", "(QMIX):", "wolf_0,", "wolf_1", "5.50"],
        ["sheep", "(PPO):", "sheep", "−1.00"],
        ["tuned-20261120-000000", "waiting", "77", *rows[9][-2:]],
    ]
    assert rows[-1][:2] == ["foreign:", "broken:"]


def test_80_columns_hold_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["runs", str(folder)]) == 0
    plain = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    lines = plain.splitlines()
    table = lines[: max(n for n, line in enumerate(lines) if "tuned" in line)]
    assert max(map(len, table)) <= 80
    for whole in (KILLED, TAG, "interrupted", "1,234", "5.50", "−1.00"):
        assert any(whole in line for line in table), f"{whole} is broken or cut off"


def test_programs_get_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", str(folder), "--json"]) == 0
    killed, done, sweep, foreign = json.loads(capsys.readouterr().out)
    assert killed["path"] == str(folder / KILLED)
    assert (killed["state"], killed["resumable_at"]) == ("interrupted", None)
    assert [server["evaluated"] for server in done["servers"]] == [5.5, -1.0]
    assert sweep["counts"] == {"done": 1, "waiting": 1}
    assert "plan.json" in foreign["cause"]


def test_a_folder_without_runs_or_none_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert f"no run or sweep in '{tmp_path}'" in capsys.readouterr().out
    assert cli.main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400 * 2.5, "2 d")],
)
def test_an_age_is_one_number(seconds: float, text: str) -> None:
    assert runs._age(seconds) == text


def test_a_reader_that_has_seen_enough_is_no_mistake(folder: Path) -> None:
    run = RunDirectory(folder / TAG)
    run.log("ppo").write_text("a line\n" * 100_000)
    command = f"{sys.executable} -m muxrl logs {run.path} ppo | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("a line\n0\n", "")


def test_lines_of_several_processes_say_whose_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(folder / TAG)
    run.log("ppo").write_text("one\ntwo\n")
    run.log("evaluation").write_text("begun\n")
    assert cli.main(["logs", str(run.path), "-n", "1"]) == 0
    assert capsys.readouterr().out == "evaluation | begun\nppo        | two\n"
    assert cli.main(["logs", str(run.path), "ppo", "-f"]) == 0, "the run is over"
    assert capsys.readouterr().out == "one\ntwo\n"
    assert cli.main(["logs", str(run.path), "pppo"]) == 2
    assert "did you mean 'ppo'?" in capsys.readouterr().err


def test_what_cannot_be_stopped_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StatusFile(RunDirectory(folder / TAG)).enter("done", 7)
    assert cli.main(["stop", str(folder / TAG)]) == 2
    assert capsys.readouterr() == (
        "",
        f"muxrl: run '{folder / TAG}' is over: done, at 7 env steps\n",
    )
