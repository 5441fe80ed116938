"""`muxrl report` writes reports and ends with the right exit code."""

from pathlib import Path

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.records.recorded import whole_run

from muxrl.orchestrator.records.run_directory import RunDirectory

run = pytest.fixture(lambda tmp_path: whole_run(tmp_path))


def test_one_run_has_its_report_in_its_directory(run: RunDirectory, muxrl: Muxrl) -> None:
    assert "wolves" in muxrl("report", run.path).out
    assert (run.path / "summary.md").is_file()
    assert (run.path / "plots" / "learning.png").is_file()


def test_out_names_another_folder(run: RunDirectory, tmp_path: Path, muxrl: Muxrl) -> None:
    muxrl("report", run.path, "--out", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "summary.md").is_file()
    assert not (run.path / "summary.md").exists()


def test_seeds_are_reported_together(run: RunDirectory, tmp_path: Path, muxrl: Muxrl) -> None:
    other = whole_run(tmp_path, seed=2, shift=1.0)
    paths = [str(run.path), str(other.path)]
    told = muxrl("report", *paths, "--out", tmp_path / "both", "--over-seeds")
    assert "over 2 seeds: what to expect of training again" in " ".join(told.out.split())


def test_several_runs_need_a_folder_of_their_own(run: RunDirectory, muxrl: Muxrl) -> None:
    assert muxrl("report", run.path, run.path, code=2).err == (
        "muxrl: report: a report of several runs needs --out DIR: it does not belong into one of "
        "them\n"
    )


def test_a_file_in_place_of_the_folder_is_refused_and_broken_metrics_are_a_failure(
    run: RunDirectory, tmp_path: Path, muxrl: Muxrl
) -> None:
    (tmp_path / "file").touch()
    muxrl("report", run.path, "--out", tmp_path / "file", code=2)
    (run.metrics / "evaluation.jsonl").write_text("{broken\n{}\n")
    assert "evaluation.jsonl" in muxrl("report", run.path, code=1).err
