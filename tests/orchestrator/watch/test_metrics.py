"""The simulation's metrics on the live page, as the data that it draws."""

from __future__ import annotations

from pathlib import Path

from tests.orchestrator.measure.test_metric_results import played, write_run
from tests.orchestrator.records.recorded import new_run, write_whole_run

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.watch.run_view import RunView


def test_each_metric_has_curves_of_the_episode_or_of_servers(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_run(run, gain=2.0)
    hits, win = RunView(run.path).read()["metrics"]
    assert win == {
        "name": "win",
        "of": [
            {
                "server": None,
                "training": [(100, 0.25), (200, 0.75)],
                "evaluated": [(0, 0.0), (500, 1.0)],
            }
        ],
    }
    assert hits["of"] == [
        {"server": "wolves", "training": [(100, 3.0), (200, 3.0)], "evaluated": [(500, 3.5)]},
        {"server": "sheep", "training": [(100, 1.0), (200, 1.0)], "evaluated": []},
    ]


def test_a_run_without_metrics_shows_none(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_whole_run(run)
    assert RunView(run.path).read()["metrics"] == []


def test_what_comes_is_added_and_what_is_cut_back_is_forgotten(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    view = RunView(run.path)
    with MetricsWriter(run) as metrics:
        for n in range(3):
            metrics.evaluation(played(n, None, [float(n)]))
            metrics.joint({"env_steps": n, "episode_return_mean": {}, "metrics": {}})
            view.read()
        lengths = metrics.sync()
        metrics.evaluation(played(3, None, [3.0]))
    assert [p for p, _ in view.read()["metrics"][0]["of"][0]["evaluated"]] == [0, 1, 2, 3]
    with MetricsWriter(run) as metrics:
        metrics.cut_back(lengths, 2)
        told = {"win": {COMMON: 0.5}}
        metrics.joint({"env_steps": 5, "episode_return_mean": {}, "metrics": told})
    (win,) = view.read()["metrics"]
    assert win["of"] == [
        {
            "server": None,
            "training": [(5, 0.5)],
            "evaluated": [(0, 0.0), (1, 1.0), (2, 2.0)],
        }
    ]
