"""A report's values of the simulation's metrics are as worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.records.recorded import evaluation, new_run, whole_run
from tests.orchestrator.reports.test_report import printed

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.measure.judged import metric_results
from muxrl.orchestrator.measure.statistics import Unit, mean_interval
from muxrl.orchestrator.records.frames import metric_frame
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.report import write_report

Values = Sequence[float | None]


def played(
    env_steps: int, replaced: str | None, win: Values, hits: Mapping[str, Values] | None = None
) -> dict[str, Any]:
    """Returns an evaluation with the metric "win" of each episode, and "hits" of some agents."""
    flat = [0.0] * len(win)
    record = evaluation(env_steps, replaced, flat, flat, flat)
    return {**record, "metrics": {"win": {COMMON: win}, **({"hits": hits} if hits else {})}}


def write_run(run: RunDirectory, gain: float = 0.0) -> None:
    wolves = {"wolf_0": [1.0, None, 5.0], "wolf_1": [3.0, None, None]}
    with MetricsWriter(run) as metrics:
        metrics.evaluation(played(0, None, [0.0, 0.0, 0.0]))
        metrics.evaluation(played(500, None, [1.0, 0.0, gain], wolves))
        metrics.evaluation(played(500, "wolves", [0.0, 0.0, 0.0], {"wolf_0": [0.0, 0.5, 1.0]}))
        metrics.evaluation(played(500, "sheep", [1.0, 1.0, None], wolves))
        for env_steps, wins in ((100, 0.25), (200, 0.75)):
            means = {"win": {COMMON: wins}, "hits": {"wolf_0": 2.0, "wolf_1": 4.0, "sheep": 1.0}}
            metrics.joint({"env_steps": env_steps, "episode_return_mean": {}, "metrics": means})


def test_metrics_are_of_whole_episodes_or_means_over_a_servers_agents(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_run(run)
    report = write_report(run)
    found = json.loads((run.path / "summary.json").read_text())["metrics"]
    names = ("name", "server", "train", "num_episodes", "env_steps")
    assert [
        (
            *(one[name] for name in names),
            one["evaluated"] and one["evaluated"]["mean"],
            {server: estimate["mean"] for server, estimate in one["random"].items()},
        )
        for one in found
    ] == [
        # Two episodes: the mean of 1 and 3, and 5.
        ("hits", "wolves", 3.0, 2, 500, 3.5, {"wolves": 0.5}),
        ("hits", "sheep", 1.0, 0, None, None, {}),
        ("win", None, 0.75, 3, 500, 1 / 3, {"wolves": 0.0, "sheep": 1.0}),
    ]
    assert found[2]["curves"] == [[[0.0, 0.0], [500.0, 1 / 3]]]
    assert [curve.returns.tolist() for curve in report.metrics[2].training] == [[0.25, 0.75]]
    markdown = (run.path / "summary.md").read_text()
    assert "| metric | of | train | evaluated [95 %, episodes] | random in place |" in markdown
    assert "| win | episode | 0.75 | 0.33 [" in markdown
    assert "| 0.00 (wolves), 1.00 (sheep) |" in markdown
    assert "| hits | sheep | 1.00 | – | – |" in markdown
    text = printed(report)
    for words in ("0.00 (wolves)", "win", "episode", "hits"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_metric_of_zeros_and_ones_is_a_proportion(tmp_path: Path) -> None:
    """ "win" is 0 in all 20 episodes, yet its interval ends above 0; others are Student's."""
    run = new_run(tmp_path, metrics=["win", "captures"])
    nobody = [0.0] * 20
    with MetricsWriter(run) as metrics:
        told = {name: {COMMON: nobody} for name in ("win", "truncated", "episode_length")}
        told["captures"] = {COMMON: [*nobody[1:], 2.0]}
        for replaced in (None, "wolves", "sheep"):
            row = evaluation(100, replaced, nobody, nobody, nobody)
            metrics.evaluation({**row, "metrics": told})
    of = {m.name: m.evaluated for m in metric_results([RecordedRun.read(run.path)], Unit.EPISODES)}
    assert (of["win"].low, of["win"].high) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert (of["truncated"], of["episode_length"]) == (of["win"], mean_interval([nobody]))
    assert of["captures"] == mean_interval([[*nobody[1:], 2.0]])


def test_a_metric_that_no_episode_had_is_named(tmp_path: Path) -> None:
    run = new_run(tmp_path, metrics=["win", "wins"])
    write_run(run)
    (note,) = (note for note in write_report(run).notes if "metrics" in note)
    assert "no episode had a metric 'wins', which simulation.metrics names" in note


def test_runs_from_before_metrics_existed_have_none(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    assert write_report(run).metrics == ()
    assert "metric" not in (run.path / "summary.md").read_text()
    assert metric_frame([run.path]).empty


def test_the_frame_has_a_row_for_each_episode_with_the_metric(tmp_path: Path) -> None:
    run = new_run(tmp_path, seed=7)
    write_run(run)
    frame = metric_frame([run.path])
    hits = frame[(frame.metric == "hits") & frame.replaced.isna()]
    assert hits[["server", "agent", "episode", "value"]].to_numpy().tolist() == [
        ["wolves", "wolf_0", 0, 1.0],
        ["wolves", "wolf_0", 2, 5.0],
        ["wolves", "wolf_1", 0, 3.0],
    ]
    wins = frame[frame.metric == "win"]
    assert wins.agent.isna().all()
    assert (len(wins), set(frame.seed)) == (3 + 3 + 3 + 2, {7})
