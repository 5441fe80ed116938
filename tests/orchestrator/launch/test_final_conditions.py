"""What the evaluation at the end plays beside random agents."""

from __future__ import annotations

import numpy as np
from tests.servers.scripted_store import make_plan

from muxrl.orchestrator.launch.evaluation import final_conditions
from muxrl.orchestrator.records.conditions import Condition

WON = list(np.random.default_rng(0).choice([-1.0, 1.0], 40))
AGAINST = {"a": WON, "b": [-one for one in WON]}
DRAWN = {"a": [0.0] * 40, "b": [0.0] * 40}
A, B = Condition("both", "a", ("a",)), Condition("both", "b", ("b",))


def untrained(condition: Condition) -> Condition:
    return Condition(condition.server_id, condition.side, condition.agents, is_untrained=True)


def test_each_server_is_compared_as_it_began_but_for_those_without_an_update() -> None:
    learning = {"one": make_plan("a"), "other": make_plan("b")}
    returns = dict.fromkeys((None, *learning), AGAINST)  # but no server is on both sides
    found = list(final_conditions(returns, learning, {"other"}))
    assert found == [Condition("other", is_untrained=True)]
    assert list(final_conditions(returns, learning, ())) == []


def test_a_server_on_both_sides_is_replaced_side_by_side() -> None:
    learning = {"both": make_plan("ab")}
    returns = {None: DRAWN, "both": AGAINST}
    found = list(final_conditions(returns, learning, {"both"}))
    assert found == [A, B, untrained(A), untrained(B)]
    assert list(final_conditions(returns, learning, ())) == [A, B]


def test_a_team_on_both_sides_is_not_untrained_in_part() -> None:
    returns = {None: AGAINST, "both": DRAWN}
    learning = {"both": make_plan("ab", groups={"team": ("a", "b")})}
    assert list(final_conditions(returns, learning, {"both"})) == [A, B]
    teams = {"both": make_plan("ab", groups={"a": ("a",), "b": ("b",)})}
    assert len(list(final_conditions(returns, teams, {"both"}))) == 4
