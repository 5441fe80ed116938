"""A run's report.html: what it says first, what it holds, and that it needs no other file."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

import pytest
from tests.orchestrator.comparisons.output.test_written import Page
from tests.orchestrator.records.recorded import evaluation, new_run, write_whole_run

from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.report import combine_runs, write_report
from muxrl.orchestrator.reports.run_page import sentences


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return new_run(tmp_path)


def test_a_page_holds_the_report_and_needs_no_other_file(run: RunDirectory) -> None:
    write_whole_run(run)
    run.write_config("name: <chase>\n")
    run.write_versions()
    report = write_report(run)
    text = (run.path / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert [image[:22] for image in page.images] == ["data:image/png;base64,"]
    assert list(sentences(report)) == [
        "wolves (QMIX) is better than random agents in its place: +5.00 [5.00, 5.00].",
        "sheep (PPO) is worse than random agents in its place: −1.00 [−1.00, −1.00].",
    ]
    for sentence in (*sentences(report), report.caption):
        assert sentence in html.unescape(text)
    assert "name: &lt;chase&gt;" in text
    assert "ray 2." in text


def test_of_several_seeds_it_says_how_many_are_above(run: RunDirectory, tmp_path: Path) -> None:
    other = new_run(tmp_path, seed=2)
    for each in (run, other):
        write_whole_run(each)
    report = combine_runs([run.path, other.path], tmp_path / "out")
    assert "5.00], 2 of 2 seeds above." in next(sentences(report))
    assert "2 of 2 seeds above" in (tmp_path / "out" / "report.html").read_text()


def test_what_was_not_measured_is_said(run: RunDirectory) -> None:
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 10, "episode_return_mean": {"wolf_0": 1.0}})
    report = write_report(run)
    assert list(sentences(report)) == [
        "wolves (QMIX) was never evaluated.",
        "sheep (PPO) was never evaluated.",
    ]
    assert "no evaluation was recorded" in (run.path / "report.html").read_text()
    with MetricsWriter(run) as metrics:
        metrics.evaluation(evaluation(10, None, [1.0, 2.0], [1.0, 2.0], [0.0, 0.0]))
    wolves = next(sentences(write_report(run)))
    assert wolves.startswith("wolves (QMIX) returns 1.50 [")
    assert wolves.endswith("]; random in its place was not measured.")
    fixed = [replace(server, learns=False) for server in report.servers]
    assert list(sentences(replace(report, servers=tuple(fixed)))) == []
