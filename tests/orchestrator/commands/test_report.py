"""`muxrl report`: what it writes, and how it ends."""

from pathlib import Path

import pytest
from tests.orchestrator.records.recorded import new_run, write_whole_run

from muxrl.orchestrator import cli
from muxrl.orchestrator.records.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path)
    write_whole_run(run)
    return run


def test_one_run_has_its_report_in_its_directory(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(run.path)]) == 0
    assert "wolves" in capsys.readouterr().out
    assert (run.path / "summary.md").is_file()
    assert (run.plots / "learning.png").is_file()


def test_out_names_another_folder(run: RunDirectory, tmp_path: Path) -> None:
    assert cli.main(["report", str(run.path), "--out", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "summary.md").is_file()
    assert not (run.path / "summary.md").exists()


def test_seeds_are_reported_together(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = new_run(tmp_path, seed=2)
    write_whole_run(other, shift=1.0)
    paths = [str(run.path), str(other.path)]
    assert cli.main(["report", *paths, "--out", str(tmp_path / "both"), "--over-seeds"]) == 0
    assert "over 2 seeds: they speak of training again" in " ".join(capsys.readouterr().out.split())


def test_several_runs_need_a_folder_of_their_own(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(run.path), str(run.path)]) == 2
    assert capsys.readouterr().err == (
        "muxrl: report: several runs need --out DIR, since their report belongs to none of them\n"
    )


def test_what_is_no_run_or_another_experiment_is_refused(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err
    other = new_run(tmp_path, 2, "ppo:wolf_0,wolf_1|ppo:sheep")
    out = ["--out", str(tmp_path / "both")]
    assert cli.main(["report", str(run.path), str(other.path), *out]) == 2
    assert "nothing but the seed" in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_refused_and_broken_metrics_are_a_failure(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["report", str(run.path), "--out", str(tmp_path / "file")]) == 2
    (run.metrics / "evaluation.jsonl").write_text("{broken\n{}\n")
    assert cli.main(["report", str(run.path)]) == 1
    assert "evaluation.jsonl" in capsys.readouterr().err
