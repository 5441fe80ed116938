"""A report compares servers with random and untrained agents, and each side of self-play."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.measure.test_against_random import LUCK
from tests.orchestrator.records.recorded import evaluation, new_run, whole_run, write_whole_run
from tests.orchestrator.reports.test_report import printed

from muxrl.orchestrator.measure.against_random import Verdict
from muxrl.orchestrator.records.conditions import AS_LEARNED, Condition
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.report import combine_runs, write_report

LEFT, RIGHT = Condition("both", "left", ("left",)), Condition("both", "right", ("right",))


def untrained(condition: Condition) -> Condition:
    return Condition(condition.server_id, condition.side, condition.agents, is_untrained=True)


# --- the report of a run --------------------------------------------------------------------


def add_untrained(run: RunDirectory, wolves: Sequence[float], sheep: Sequence[float]) -> None:
    """Adds the untrained conditions to the last evaluation of `write_whole_run`."""
    learned = [5.0, 6.0]
    with MetricsWriter(run) as metrics:
        metrics.evaluation(evaluation(1_000, "wolves:untrained", wolves, wolves, [-1.0, -1.0]))
        metrics.evaluation(evaluation(1_000, "sheep:untrained", learned, learned, sheep))


@pytest.mark.usefixtures("undrawn")
def test_a_greedy_policy_that_has_learned_nothing_is_not_said_to_have_learned(
    tmp_path: Path,
) -> None:
    """In an issue, PPO returned 2.60 and random agents 2.15: only since PPO was greedy."""
    run = whole_run(tmp_path)
    add_untrained(run, wolves=[5.0, 6.0], sheep=[0.0, 0.0])
    report = write_report(run)
    wolves, sheep = report.servers
    assert wolves.judgement is Verdict.NOT_THAN_UNTRAINED
    assert sheep.judgement is Verdict.WORSE
    (note,) = [note for note in report.notes if "untrained" in note]
    assert note.startswith(
        "wolves is better than random, but not than untrained: the reason may be"
    )
    assert report.headline[0] == (
        "wolves (QMIX) is better than random agents in its place, but not than untrained ones: "
        "+5.00 [4.87, 5.13] over episodes."
    )
    final = json.loads((run.path / "summary.json").read_text())["servers"]["wolves"]["final"]
    assert final["untrained"]["mean"] == 5.5
    assert (final["over_untrained"]["mean"], final["verdict"]) == (
        0.0,
        "better than random, not than untrained",
    )
    markdown = (run.path / "summary.md").read_text()
    over = "[95 %, episodes]"
    assert f"| untrained {over} | advantage {over} | over untrained {over} | verdict |" in markdown
    assert (
        "| 5.50 [−0.85, 11.85] | +5.00 [4.87, 5.13] | 0.00 [–] | better than random, not "
        "than untrained |" in markdown
    )
    assert (
        "Untrained: this server's agents act with the weights that the server began with"
        in report.caption
    )
    page = (run.path / "report.html").read_text()
    assert "over untrained" in page


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("width", [80, 100])
def test_the_table_with_untrained_agents_fits_into_the_terminal(tmp_path: Path, width: int) -> None:
    run = whole_run(tmp_path)
    add_untrained(run, wolves=[1.0, 2.01], sheep=[-2.0, -2.0])
    text = printed(write_report(run), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    rows = [" ".join(line.split()) for line in lines]
    assert any(row.endswith("its place verdict") or "untrained verdict" in row for row in rows)
    assert any(row.endswith("better than random") for row in rows)
    assert any(row.endswith("and untrained") for row in rows)
    assert any("1.50" in row for row in rows)  # of the untrained wolves


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_compared_with_untrained_if_all_were(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed=seed) for seed in (1, 2)]
    for run, shift in zip(runs, (0.0, 0.1), strict=True):
        write_whole_run(run, shift)
    add_untrained(runs[0], wolves=[1.0, 2.01], sheep=[-2.0, -2.0])
    paths = [run.path for run in runs]
    assert combine_runs(paths, tmp_path / "some").servers[0].judgement is Verdict.BETTER
    add_untrained(runs[1], wolves=[1.0, 2.01], sheep=[-2.0, -2.0])
    report = combine_runs(paths, tmp_path / "all")
    assert report.servers[0].judgement is Verdict.BETTER_THAN_BOTH
    assert report.servers[0].final.num_untrained_episodes == 4
    text = (tmp_path / "all" / "summary.md").read_text()
    assert "| better than random and untrained (2 of 2 seeds above) |" in text


# --- a server on both sides -----------------------------------------------------------------


def self_play(
    root: Path,
    conditions: Mapping[Condition, tuple[Any, Any]],
    seed: int = 1,
    at_first: tuple[Any, Any] | None = None,
) -> RunDirectory:
    """Writes a run of one server with two agents, evaluated in these conditions at its end.

    Args:
        at_first: the learned returns of an evaluation before training; None: there is none.
    """
    run = new_run(root, seed)
    agents = ["left", "right"]
    servers = {"both": {"algorithm": "PPO", "agents": agents, "groups": {}}}
    run.write_plan({"servers": servers, "assignment": "ppo:left,right", "seed": seed})
    evaluated = [(1_000, condition, returns) for condition, returns in conditions.items()]
    if at_first is not None:
        evaluated.insert(0, (0, AS_LEARNED, at_first))
    with MetricsWriter(run) as metrics:
        for env_steps, condition, returns in evaluated:
            record = {
                "time_s": 1.0,
                "env_steps": env_steps,
                "replaced": condition.key,
                "should_explore": False,
                "num_episodes": 30,
                "is_final": env_steps > 0,
                "returns": dict(zip(agents, map(list, returns), strict=True)),
            }
            if condition.side:
                record["agents"] = condition.agents
            metrics.evaluation(record)
    return run


def both_ways(left: float, right: float) -> tuple[Any, Any]:
    """Returns the returns of both sides in a game with this difference of skill."""
    return LUCK + left - right, right - left - LUCK


WHOLE = {AS_LEARNED: both_ways(2, 1), Condition("both"): both_ways(0, 0)}
SIDES = {LEFT: both_ways(0, 1), RIGHT: both_ways(2, 0)}
BEGAN = {untrained(LEFT): both_ways(1.5, 1), untrained(RIGHT): both_ways(2, 1)}


@pytest.mark.usefixtures("undrawn")
def test_a_server_on_both_sides_is_judged_side_by_side(tmp_path: Path) -> None:
    report = write_report(self_play(tmp_path, WHOLE | SIDES | BEGAN))
    (server,) = report.servers
    assert (server.plays_itself, server.judgement) == (True, "side by side")
    left, right = server.sides
    assert (left.name, left.agents) == ("left", ("left",))
    assert (left.final.advantage.mean, left.final.over_untrained.mean) == pytest.approx((2.0, 0.5))
    assert right.final.advantage.mean == pytest.approx(1.0)
    assert left.final.verdict is Verdict.BETTER_THAN_BOTH
    assert right.final.verdict is Verdict.NOT_THAN_UNTRAINED
    assert list(report.headline) == [
        "both/left (PPO) is better than random agents and than untrained ones in its place: +2.00 "
        "[2.00, 2.00] over episodes.",
        "both/right (PPO) is better than random agents in its place, but not than untrained ones: "
        "+1.00 [1.00, 1.00] over episodes.",
    ]
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 80
    (head,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["both"]]
    assert "0.00" not in head
    assert {"both/left", "both/right"} <= set(text.split())
    assert "side by side" in text
    assert "both plays against itself" in " ".join(text.split())


def test_summary_and_page_have_the_sides(tmp_path: Path) -> None:
    run = self_play(tmp_path, WHOLE | SIDES)
    write_report(run)
    found = json.loads((run.path / "summary.json").read_text())["servers"]["both"]
    assert found["plays_itself"] is True
    assert found["sides"]["right"]["agents"] == ["right"]
    assert found["sides"]["right"]["final"]["verdict"] == "better than random"
    markdown = (run.path / "summary.md").read_text()
    # As learned, the left side is 1 above; the mean return of the whole server would be 0.00.
    row = next(line for line in markdown.splitlines() if line.startswith("| both |"))
    assert row.endswith("| – | – | – | side by side |")
    mean = f"{1 + LUCK.mean():.2f}"
    assert f"| both/left | PPO | left | – | – | {mean} [" in markdown
    assert "both/left" in (run.path / "report.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_the_curves_are_those_of_the_sides(tmp_path: Path) -> None:
    run = self_play(tmp_path, WHOLE | SIDES, at_first=both_ways(0, 3))
    (server,) = write_report(run).servers
    curves = {side.name: [c.learned.mean for c in side.curve] for side in server.sides}
    luck = float(LUCK.mean())
    assert curves["left"] == pytest.approx([luck - 3, luck + 1])
    assert curves["right"] == pytest.approx([3 - luck, -1 - luck])
    assert [c.random is None for c in server.sides[0].curve] == [True, False]
    assert [curve for side in server.sides for curve in side.seed_curves] == [
        ((0.0, pytest.approx(first)), (1_000.0, pytest.approx(last)))
        for first, last in curves.values()
    ]
    summary = json.loads((run.path / "summary.json").read_text())["servers"]["both"]
    assert [len(side["curve"]) for side in summary["sides"].values()] == [2, 2]


@pytest.mark.usefixtures("undrawn")
def test_a_server_that_plays_itself_is_not_judged_if_no_side_was_replaced(tmp_path: Path) -> None:
    report = write_report(self_play(tmp_path, WHOLE))
    (server,) = report.servers
    assert (server.judgement, server.sides) == ("plays itself", ())
    (note,) = [note for note in report.notes if "plays against itself" in note]
    assert note.endswith("only the final evaluation does this, and only for up to 4 sides")
    text = printed(report)
    assert "plays itself" in text
    assert "distinguishable" not in text
    (sentence,) = report.headline
    assert sentence.startswith(
        "both (PPO) plays against itself, and none of its sides was compared"
    )


def test_sides_of_several_seeds_are_joined_if_all_have_them(tmp_path: Path) -> None:
    paths = [self_play(tmp_path, WHOLE | SIDES, seed).path for seed in (1, 2)]
    (server,) = combine_runs(paths, tmp_path / "out").servers
    assert [(side.name, side.final.num_episodes) for side in server.sides] == [
        ("left", 60),
        ("right", 60),
    ]
    paths.append(self_play(tmp_path, WHOLE, 3).path)
    (server,) = combine_runs(paths, tmp_path / "out").servers
    assert (server.judgement, server.sides) == ("plays itself", ())
