"""Curves of a run that goes on are those of its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.orchestrator.records.recorded import SERVERS, evaluation, new_run, write_whole_run
from tests.orchestrator.reports.test_judged import BEGAN, SIDES, WHOLE, add_untrained, self_play

from muxrl.orchestrator.records.metrics import iter_rows
from muxrl.orchestrator.records.plan import Plan, roles_of
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.watch.run_view import EvaluatedReturns

PLAN = msgspec.convert({"servers": SERVERS}, Plan)


def shown(run_path: Path) -> dict[str, dict[str, Any]]:
    roles = roles_of(PLAN)
    evaluated = EvaluatedReturns(roles)
    for record in iter_rows(run_path / "metrics" / "evaluation.jsonl", EvaluationRow):
        evaluated.add(record)
    return {role.server_id: evaluated.shown(role) for role in roles}


def test_conditions_are_gathered_as_in_the_report() -> None:
    """Cf. `test_recorded_run`: near env steps are one evaluation, and another rule begins anew."""
    evaluated = EvaluatedReturns(roles := roles_of(PLAN))
    ones = [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]
    for env_steps, replaced, rule in (
        (0, None, True),
        (100, None, False),
        (103, "wolves", False),
        (200, None, False),
        (200, None, False),
        (204, "wolves", False),
    ):
        row = evaluation(env_steps, replaced, *ones, should_explore=rule)
        evaluated.add(msgspec.convert(row, EvaluationRow))
    wolves = evaluated.shown(roles[0])
    assert [p[0] for p in wolves["evaluated"]] == [100, 200]
    assert [p[0] for p in wolves["random"]] == [100, 200]
    sheep = evaluated.shown(roles[1])
    assert sheep["random"] == []
    assert sheep["verdict"] == ""


def test_the_last_evaluation_is_judged_as_the_report_does(tmp_path: Path) -> None:
    """Against untrained policies too, and side by side where a server plays itself."""
    run = new_run(tmp_path / "chase")
    write_whole_run(run)
    add_untrained(run, wolves=[5.0, 6.0], sheep=[0.0, 0.0])
    wolves = write_report(run).servers[0]
    assert shown(run.path)["wolves"]["verdict"] == wolves.judgement
    assert wolves.judgement == "better than random, not than untrained"

    run = self_play(tmp_path / "duel", WHOLE | SIDES | BEGAN)
    (server,) = write_report(run).servers
    roles = roles_of(run.read_plan())
    evaluated = EvaluatedReturns(roles)
    for record in iter_rows(run.metrics / "evaluation.jsonl", EvaluationRow):
        evaluated.add(record)
    for role, side in zip(roles, server.sides, strict=True):
        assert role.agents == side.agents
        found = evaluated.shown(role)
        assert found["verdict"] == side.final.verdict
        assert side.final.random is not None
        assert found["random"][-1][1] == pytest.approx(side.final.random.mean)


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
