"""What the page gets of a run: its servers, its returns as in the report, its metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.orchestrator.measure.test_metric_results import played, write_run
from tests.orchestrator.records.recorded import evaluation, new_run, whole_run
from tests.orchestrator.reports.test_judged import BEGAN, SIDES, WHOLE, add_untrained, self_play

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.plan import Plan, roles_of
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.watch.run_view import RunView


def shown(run: RunDirectory) -> list[dict[str, Any]]:
    """Returns the roles of all servers."""
    return [role for server in RunView(run.path).read()["servers"] for role in server["roles"]]


def test_conditions_are_gathered_as_in_the_report(tmp_path: Path) -> None:
    """As in `test_recorded_run`, near env steps are one evaluation; another rule begins anew."""
    run = new_run(tmp_path)
    ones = [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]
    with MetricsWriter(run) as metrics:
        for env_steps, replaced, rule in (
            (0, None, True),
            (100, None, False),
            (103, "wolves", False),
            (200, None, False),
            (200, None, False),
            (204, "wolves", False),
        ):
            metrics.evaluation(evaluation(env_steps, replaced, *ones, should_explore=rule))
    wolves, sheep = shown(run)
    assert [p[0] for p in wolves["evaluated"]] == [100, 200]
    assert [p[0] for p in wolves["random"]] == [100, 200]
    assert sheep["random"] == []
    assert sheep["verdict"] == ""


def test_an_evaluation_that_was_stopped_is_not_mixed_with_the_one_before(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = [(100, who, [1.0, 2.0]) for who in (None, "wolves", "sheep")]
    final = [(100, who, [5.0, 6.0, 7.0]) for who in (None, "wolves", "sheep")]
    with MetricsWriter(run) as metrics:
        for env_steps, replaced, returns in [*rows, *final[:2]]:
            metrics.evaluation(evaluation(env_steps, replaced, returns, returns, returns))
        metrics.sync()
        view = RunView(run.path)
        for found in (role for server in view.read()["servers"] for role in server["roles"]):
            assert (found["evaluated"][-1][1], found["random"][-1][1]) == (1.5, 1.5)
            assert found["num_episodes"] == 2
        metrics.evaluation(evaluation(*final[2][:2], *[final[2][2]] * 3))
        metrics.sync()
        for found in (role for server in view.read()["servers"] for role in server["roles"]):
            assert (found["evaluated"][-1][1], found["random"][-1][1]) == (6.0, 6.0)
            assert found["num_episodes"] == 3


def test_the_last_evaluation_is_judged_as_the_report_does(tmp_path: Path) -> None:
    """It is compared with untrained policies, too, and side by side if a server plays itself."""
    run = whole_run(tmp_path / "chase")
    assert RunView(run.path).read()["metrics"] == []
    add_untrained(run, wolves=[5.0, 6.0], sheep=[0.0, 0.0])
    wolves = write_report(run).servers[0]
    assert shown(run)[0]["verdict"] == wolves.judgement
    assert wolves.judgement == "better than random, not than untrained"

    run = self_play(tmp_path / "duel", WHOLE | SIDES | BEGAN)
    (server,) = write_report(run).servers
    for found, side in zip(shown(run), server.sides, strict=True):
        assert found["agents"] == side.agents
        assert found["verdict"] == side.final.verdict
        assert found["random"][-1][1] == pytest.approx(side.final.random.mean)


def test_a_learner_without_an_update_is_not_called_better(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    for seq_no, judgement in ((0, "made no update"), (1, "better than random")):
        with MetricsWriter(run) as metrics:
            metrics.joint({"env_steps": 1, "servers": {"wolves": {"weights_seq_no": seq_no}}})
        wolves = write_report(run).servers[0]
        assert shown(run)[0]["verdict"] == wolves.judgement == judgement


@pytest.mark.parametrize("has_roles", [True, False])
def test_a_server_that_plays_itself_is_judged_only_by_single_sides(
    tmp_path: Path, has_roles: bool
) -> None:
    """Earlier evaluations replace the whole server, which says nothing of a single side."""
    run = self_play(tmp_path, WHOLE)
    plan = json.loads((run.path / "plan.json").read_text())
    if not has_roles:
        plan["servers"]["both"]["groups"] = {"one": ["left", "right"]}
        run.write_plan(plan)
    view = RunView(run.path)

    def roles() -> list[dict[str, Any]]:
        (server,) = view.read()["servers"]
        return list(server["roles"])

    assert {role["verdict"] for role in roles()} == {"plays itself"}
    assert [role["random"] for role in roles()] == [[]] * len(roles())
    with MetricsWriter(run) as metrics:
        for condition, returns in (WHOLE | SIDES).items():
            by_agent = dict(zip(("left", "right"), map(list, returns), strict=True))
            row = {"env_steps": 2_000, "num_episodes": 30, "returns": by_agent}
            sided = {"agents": condition.agents} if condition.side else {}
            metrics.evaluation({**row, "replaced": condition.key, **sided})
    found = roles()
    assert [p[0] for p in found[0]["evaluated"]] == [1_000, 2_000]
    if has_roles:
        assert [[point[0] for point in role["random"]] for role in found] == [[2_000]] * 2
        assert {role["verdict"] for role in found} == {"better than random"}
    else:
        (one,) = found
        assert (one["random"], one["advantage"], one["verdict"]) == ([], None, "side by side")


@pytest.mark.parametrize(
    ("agents", "groups", "expected"),
    [
        (["a_0", "a_1"], {}, {"": ["a_0", "a_1"]}),
        (["wolf_0", "wolf_1", "sheep"], {}, {"wolf": ["wolf_0", "wolf_1"], "sheep": ["sheep"]}),
        (["x", "y", "z"], {"g": ["x", "z"]}, {"g": ["x", "z"], "y": ["y"]}),
        (["a", "b", "c", "d", "e"], {}, {"": ["a", "b", "c", "d", "e"]}),
        (["0", "1"], {}, {"0": ["0"], "1": ["1"]}),
    ],
)
def test_roles_are_groups_or_names_in_common(
    agents: list[str], groups: dict[str, list[str]], expected: dict[str, list[str]]
) -> None:
    server = {"algorithm": "PPO", "agents": agents, "groups": groups}
    roles = roles_of(msgspec.convert({"servers": {"s": server}}, Plan))
    assert {role.name: list(role.agents) for role in roles} == expected


@pytest.mark.parametrize("num_logged", [0, 40])
def test_a_server_whose_actions_simulations_choose_is_not_called_one_that_does_not_learn(
    tmp_path: Path, num_logged: int
) -> None:
    run = new_run(tmp_path)
    plan = json.loads((run.path / "plan.json").read_text())
    plan["servers"]["sheep"] |= {"algorithm": "RANDOM", "learns": False}
    run.write_plan(plan)
    view = RunView(run.path)
    assert not any(server["is_played_by_others"] for server in view.read()["servers"])
    with MetricsWriter(run) as metrics:
        state = {"num_env_steps": 20, "num_logged_actions": num_logged}
        metrics.joint({"env_steps": 20, "time_s": 1.0, "servers": {"sheep": state}})
    found = {s["id"]: (s["learns"], s["is_played_by_others"]) for s in view.read()["servers"]}
    assert found == {"wolves": (True, False), "sheep": (False, num_logged > 0)}


def test_changing_numbers_of_learners_have_a_curve_for_each_policy(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    view = RunView(run.path)
    with MetricsWriter(run) as metrics:
        for n in (1, 2):
            learner = {"a": {"entropy": 0.5 / n, "lr": None}, "b": {"entropy": 1.5, "coeff": 0.1}}
            metrics.server("wolves", {"env_steps": 100 * n, "loss": 3.0 * n, "learner": learner})
            metrics.server("sheep", {"env_steps": 50 * n, "learner": {"a": {"lr": 1e-5 / n}}})
    wolves, sheep = (server["learned"] for server in view.read()["servers"])
    assert wolves == [
        {"name": "loss", "of": [{"policy": "", "points": [(100, 3.0), (200, 6.0)]}]},
        {
            "name": "entropy",
            "of": [
                {"policy": "a", "points": [(100, 0.5), (200, 0.25)]},
                {"policy": "b", "points": [(100, 1.5), (200, 1.5)]},
            ],
        },
    ]
    assert sheep == [{"name": "lr", "of": [{"policy": "a", "points": [(50, 1e-5), (100, 5e-6)]}]}]


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


def test_a_resume_is_marked_where_it_happened(tmp_path: Path) -> None:
    """The mark is not at the first row after the resume, which is written once servers play."""
    run = new_run(tmp_path)
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 100, "time_s": 5.0})
        row = {"env_steps": 130, "time_s": 9.0, "resumed_from": 110, "restarted": ["sheep"]}
        metrics.joint(row)
    assert RunView(run.path).read()["marks"] == [
        {"env_steps": 110, "time_s": 5.0, "what": "resumed"},
        {"env_steps": 130, "time_s": 9.0, "what": "sheep started again"},
    ]


def test_new_rows_are_added_and_rows_that_are_cut_back_are_dropped(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    view = RunView(run.path)
    with MetricsWriter(run) as metrics:
        for n in range(3):
            metrics.evaluation(played(n, None, [float(n)]))
            # With a server replaced, metrics are not the run's.
            metrics.evaluation(played(n, "wolves", [9.0]))
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
