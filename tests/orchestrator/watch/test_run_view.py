"""What the page is told of a run's servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.orchestrator.records.recorded import new_run

from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.watch.run_view import RunView


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


def test_what_changes_of_what_learners_say_has_a_curve_for_each_policy(tmp_path: Path) -> None:
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
