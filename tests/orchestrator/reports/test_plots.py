from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from tests.orchestrator.measure.test_metric_results import write_run
from tests.orchestrator.records.recorded import new_run, whole_run
from tests.orchestrator.reports.test_judged import LUCK, SIDES, WHOLE, both_ways, self_play

from muxrl.orchestrator.measure.results import results_of
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.reports.plots import COLOURS, short_count
from muxrl.orchestrator.reports.run_picture import _figure, _wrapped_assignment


def test_every_server_has_a_panel_and_keeps_its_colour(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    figure = _figure(results_of([RecordedRun.read(run.path)]))
    wolves, sheep, training = figure.axes
    assert wolves.get_title("left") == "wolves: QMIX, 2 agents"
    assert sheep.get_title("left") == "sheep: PPO, 1 agent"
    assert {axes.get_xlabel() for axes in figure.axes} == {"env steps"}
    _, learned = wolves.get_lines()
    assert learned.get_xydata().tolist() == [[0, 0.5], [1_000, 5.5]]
    assert len(wolves.collections) == 2  # the bands of both curves
    assert [to_hex(line.get_color()).upper() for line in training.get_lines()] == [*COLOURS[:2]]


def test_the_verdict_of_a_server_fits_above_its_panel(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    report = results_of([RecordedRun.read(run.path)])
    (server, *_) = report.servers
    final = replace(
        server.final,
        advantage=Estimate(12.34, 11.23, 23.45),
        over_untrained=Estimate(12.34, -11.23, 23.45),
    )
    servers = (replace(server, final=final),) * 3
    figure = _figure(replace(report, servers=servers, runs=report.runs * 3))
    figure.draw_without_rendering()
    for axes in figure.axes[:3]:
        (said,) = axes.texts
        assert said.get_text() == (
            "advantage +12.34 [11.23, 23.45] over episodes\n"
            "better than random, not than untrained\n"
            f"{final.num_seeds_above} of 3 seeds above"
        )
        assert said.get_window_extent().x1 <= axes.get_window_extent().x1


def test_a_server_that_plays_itself_has_a_panel_for_each_side(tmp_path: Path) -> None:
    run = self_play(tmp_path, WHOLE | SIDES, at_first=both_ways(0, 3))
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 900, "episode_return_mean": {"left": 1.0, "right": -1.0}})
    left, right, training = _figure(results_of([RecordedRun.read(run.path)])).axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == [
        "both/left: PPO, 1 agent",
        "both/right: PPO, 1 agent",
    ]
    for axes, first, last in ((left, -3, 1), (right, 3, -1)):
        random, learned = axes.get_lines()[0], axes.get_lines()[-1]
        sign = 1 if axes is left else -1
        assert learned.get_ydata() == pytest.approx(
            [first + sign * LUCK.mean(), last + sign * LUCK.mean()]
        )
        assert len(random.get_xdata()) == 1
    (label,) = training.get_legend().get_texts()
    assert label.get_text() == "both (mean over its sides)"


def test_a_resume_has_a_thin_line_and_a_note(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 995, "resumed_from": 990})
    report = results_of([RecordedRun.read(run.path)])
    for axes in _figure(report).axes:
        assert [990, 990] in [list(line.get_xdata()) for line in axes.get_lines()]
    assert f"run {run.name}: resumed at 990 env steps (thin vertical line)" in report.notes
    assert report.to_dict()["resumed_at"] == (990,)


def test_restarts_have_thin_lines_and_a_note(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 991, "restarted": ["sheep", "simulation-0"]})
        metrics.joint({"env_steps": 995, "restarted": ["sheep"], "num_lost_episodes": 4})
    report = results_of([RecordedRun.read(run.path)])
    for axes in _figure(report).axes:
        lines = [list(line.get_xdata()) for line in axes.get_lines()]
        assert [991, 991] in lines
        assert [995, 995] in lines
    story = f"run {run.name}: sheep was lost and started again 2×, at 991, 995 env steps"
    assert any(note.startswith(story) for note in report.notes)
    assert any("4 training episodes were cut short" in note for note in report.notes)
    summary = report.to_dict()
    assert summary["restarted_at"] == {"sheep": (991, 995), "simulation-0": (991,)}
    assert summary["num_lost_episodes"] == 4


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (500, "500"), (20_000, "20k"), (2_500, "2.5k"), (1.5e6, "1.5M")]
)
def test_axes_count_in_thousands_and_millions(value: float, text: str) -> None:
    assert short_count(value) == text


def test_long_assignments_break_between_servers() -> None:
    servers = [f"ppo:agent_{n},partner_{n},other_{n}" for n in range(6)]
    lines = _wrapped_assignment("|".join(servers))
    assert len(lines) == 3
    assert all(len(line) <= 90 for line in lines)


def test_metrics_that_change_have_a_panel_in_their_servers_colours(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_run(run, gain=2.0)
    with MetricsWriter(run) as metrics:
        for env_steps in (300, 400):
            length = {"episode_length": {"__common__": 25.0}}
            metrics.joint({"env_steps": env_steps, "episode_return_mean": {}, "metrics": length})
    figure = _figure(results_of([RecordedRun.read(run.path)]))
    _, _, _, hits, win = figure.axes
    assert [hits.get_title("left"), win.get_title("left")] == ["hits", "win"], "no fixed length"
    training, evaluated, _ = win.get_lines()
    assert training.get_xydata().tolist() == [[100, 0.25], [200, 0.75]]
    assert evaluated.get_xydata().tolist() == [[0, 0], [500, 1]]
    named = {line.get_label(): to_hex(line.get_color()).upper() for line in hits.get_lines()}
    assert (named["wolves"], named["sheep"]) == COLOURS[:2]
