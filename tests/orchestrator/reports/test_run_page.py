"""A run's report.html begins with the verdicts, holds the report, and needs no other file."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

import pytest
from tests.orchestrator.comparisons.output.test_written import Page
from tests.orchestrator.records.recorded import evaluation, new_run, write_whole_run
from tests.orchestrator.reports.test_judged import add_untrained
from tests.orchestrator.watch.browser import Browser
from tests.orchestrator.watch.conftest import tab

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.reports.run_tables import (
    METRIC_CAPTION,
    learners_grid,
    metrics_grid,
    servers_grid,
)
from muxrl.orchestrator.reports.table import markdown

__all__ = ["tab"]


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
    assert list(report.headline) == [
        "wolves (QMIX) is better than random agents in its place: +5.00 [4.87, 5.13] "
        "over episodes.",
        "sheep (PPO) is worse than random agents in its place: −1.00 [−1.25, −0.75] over episodes.",
    ]
    for sentence in (*report.headline, report.caption):
        assert sentence in html.unescape(text)
    assert "name: &lt;chase&gt;" in text
    assert "ray 2." in text


def test_metrics_have_a_table_and_intervals_are_not_broken(run: RunDirectory) -> None:
    write_whole_run(run)
    metrics = {
        "caught": {COMMON: [2.0, 3.0]},
        "<speed>": {"wolf_0": [1.0, 2.0], "wolf_1": [3.0, 4.0]},
    }
    with MetricsWriter(run) as writer:
        for replaced in (None, "wolves", "sheep"):
            flat = evaluation(2_000, replaced, [1.0, 2.0], [1.0, 2.0], [0.0, 0.0])
            writer.evaluation({**flat, "metrics": metrics})
    report = write_report(run)
    text = html.unescape((run.path / "report.html").read_text())
    metrics_shown = metrics_grid(report)
    assert markdown(metrics_shown) in (run.path / "summary.md").read_text()
    cells = [
        cell.text for row in (*servers_grid(report).rows, *metrics_shown.rows) for cell in row.cells
    ]
    assert {"<speed>", "wolves", "caught", "episode"} <= set(cells)
    shown = re.findall(r">([^<]*|<speed>)</td>", text)
    assert [cell.replace("\u00a0", " ") for cell in shown] == cells
    for cell in shown:
        assert not re.search(r"\[[^]]* ", cell), "a line would end inside the brackets"
    assert METRIC_CAPTION in text


@pytest.mark.parametrize(("width", "media"), [(390, ""), (1280, ""), (718, "print")])
def test_the_page_s_tables_fit_a_phone_a_screen_and_paper(
    run: RunDirectory, tab: Browser, width: int, media: str
) -> None:
    write_whole_run(run, shift=-300.0)
    add_untrained(run, wolves=[-295.0, -294.0], sheep=[-300.0, -300.0])
    assert write_report(run).has_untrained
    tab.call("Page.navigate", url=(run.path / "report.html").as_uri())
    tab.wait("document.readyState === 'complete' && document.querySelector('#servers')")
    try:
        tab.resize(width)
        tab.call("Emulation.setEmulatedMedia", media=media)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        table, room = tab.evaluate(
            "['#servers', '.scroll'].map((s) => document.querySelector(s).scrollWidth)"
        )
        assert table <= room, "a reader would have to scroll"
    finally:
        tab.call("Emulation.setEmulatedMedia", media="")
        tab.resize(1280)


def test_numbers_of_learners_have_a_table_by_policy_and_name(run: RunDirectory) -> None:
    write_whole_run(run)
    assert 'id="learners"' not in write_and_read(run), "it has no such numbers"
    with MetricsWriter(run) as metrics:
        for iteration, cleverness in enumerate((0.5, None, 3.0, 1.0), 1):
            learner = {"cleverness": cleverness, "lr": 0.1, "broken": math.nan}
            metrics.server("sheep", {"env_steps": iteration, "learner": {"p": learner}})
    ((*first, last),) = [[cell.text for cell in row.cells] for row in learners_grid(run.path).rows]
    assert first == ["sheep", "p", "cleverness", "0.50", "0.50", "3.00"]
    assert last == "1.00"
    page = Page(write_and_read(run))
    assert page.open == []
    assert {"learners", "learners-numbers"} <= page.ids


def write_and_read(run: RunDirectory) -> str:
    write_report(run)
    return (run.path / "report.html").read_text()
