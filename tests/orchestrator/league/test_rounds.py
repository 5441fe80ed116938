"""A round's config: which members train, their opponents, and the weights they begin with."""

from __future__ import annotations

from typing import Any

import pytest
from tests.orchestrator.league.conftest import (
    EXPLOIT,
    HANDS,
    SIDES,
    TWO,
    Folder,
    Make,
    hands,
    play,
    train,
    tree,
)

from muxrl.orchestrator.league.rounds import explored, make_round, take_over
from muxrl.orchestrator.sweeps.schema import AlgorithmTemplate, ParameterConfig, SweepConfig


def pool(round_: SweepConfig, member: str, role: str = "right") -> dict[str, Any]:
    """Returns the opponents that a member meets in a role, with their weights."""
    members = round_.algorithms[f"pool-{member}-{role}"].settings["members"]
    return {name: one.get("weight") for name, one in members.items()}


def test_members_train_in_the_rounds_that_the_config_gives(make: Make) -> None:
    late = {"role": "left", "first_round": 2, "every_rounds": 2}
    league = make(members={"a": {"role": "left"}, "late": late})
    assert [league.training(n) for n in (1, 2, 3, 4)] == [
        ["a"],
        ["a", "late"],
        ["a"],
        ["a", "late"],
    ]
    assert make_round(league, None, 1).assignments.listed == [
        {"left": "a", "right": "pool-a-right"}
    ]


def test_a_round_begins_where_the_last_one_ended(make: Make, folder: Folder) -> None:
    members = {"a": {"role": "left"}, "b": {"role": "right"}, "new": {"role": "left"}}
    members["new"]["is_fresh"] = True  # type: ignore[assignment]
    league = make(members=members)
    place = folder(league)
    train(league, place, 1)
    first, second = make_round(league, None, 1), make_round(league, place, 2)
    assert first.experiment.seed != second.experiment.seed
    assert all(not t.initialize_from for t in first.algorithms.values())
    own = place.round(1) / "runs" / "a" / "checkpoints" / "last" / "left"
    assert second.algorithms["a"].initialize_from == str(own)
    assert second.algorithms["new"].initialize_from == ""
    met = second.algorithms["pool-b-left"].settings["members"]
    assert met["a-1"]["checkpoint"] == str(own)
    assert met["a-1"]["should_explore"]


def test_members_meet_only_fixed_opponents_before_there_is_an_archive(make: Make) -> None:
    league = make(opponents={"also": {"still": {"algorithm": "RANDOM", "weight": 2.0}}})
    assert pool(make_round(league, None, 1), "a") == {"still": 2.0}
    assert pool(make_round(make(), None, 1), "a") == {"nobody": None}


def test_a_pool_acts_within_the_bounds_of_its_role(make: Make) -> None:
    """A pool without members keeps the bounds, too, as do the games' random agents."""
    experiment = tree()["experiment"]
    experiment["servers"]["right"] |= {"action_bounds": [-2.0, 1.0]}
    algorithms = make_round(make(experiment=experiment), None, 1).algorithms
    bounds = {name: one.action_bounds for name, one in algorithms.items()}
    own = {"a": [], "b": [-2.0, 1.0]}
    assert bounds == {**own, "pool-a-right": [-2.0, 1.0], "pool-b-left": []}


def test_a_pool_has_the_group_of_members_that_need_one(make: Make) -> None:
    experiment = tree()["experiment"]
    experiment["servers"]["right"] = {"agents": ["right"], "algorithm": "HAPPO"}
    algorithms = make_round(make(experiment=experiment), None, 1).algorithms
    assert algorithms["pool-a-right"].groups == {"right": ["right"]}
    assert algorithms["pool-b-left"].groups == {}


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, {"b-1": 1.0, "b-2": 1.0, "b-3": 1.0, "c-1": 1.0, "c-2": 1.0, "c-3": 1.0}),
        ({"opponents": {"last": 1}}, {"b-3": 1.0, "c-3": 1.0}),
        ({"archive_every_rounds": 2}, {"b-2": 1.0, "c-2": 1.0}),
        ({"opponents": {"draw": "recency", "last": 2}},
         {"b-2": 1.0, "b-3": 2.0, "c-2": 1.0, "c-3": 2.0}),
        ({"meets": ["c*"]}, {"c-1": 1.0, "c-2": 1.0, "c-3": 1.0}),
        ({"interchangeable": ["left", "right"], "meets": ["a", "b"]},
         {"a-1": 1.0, "a-2": 1.0, "a-3": 1.0, "b-1": 1.0, "b-2": 1.0, "b-3": 1.0}),
    ],
)  # fmt: skip
def test_opponents_of_the_archive_are_chosen_by_the_rules(
    make: Make, folder: Folder, changed: dict[str, Any], met: dict[str, float]
) -> None:
    meets = changed.pop("meets", ["*"])
    sides = {"b": {"role": "right"}, "c": {"role": "right"}}
    league = make(members={"a": {"role": "left", "meets": meets}, **sides}, **changed)
    place = folder(league)
    for number in (1, 2, 3):
        train(league, place, number)
    found = make_round(league, place, 4)
    assert pool(found, "a") == met
    assert found.algorithms["pool-a-right"].settings["draw"] == "weights"


@pytest.mark.parametrize("kind", ["nash", "alpha_rank"])
def test_a_pool_draws_as_often_as_a_solution_plays(make: Make, folder: Folder, kind: str) -> None:
    """Weights have a mean of 1, as with other rules; members with a weight of 0 are left out."""
    also = {"still": {"algorithm": "RANDOM"}}
    how = {"opponents": {"draw": kind, "also": also}, "interchangeable": SIDES}
    league = make(members=HANDS | {"none": {"role": "left", "meets": []}}, **how)
    place = folder(league, 1, hands)
    second = make_round(league, place, 2)
    met = pool(second, "rock")
    assert met.pop("still") is None
    if kind == "nash":
        assert met == pytest.approx({f"{hand}-1": 4 / 3 for hand in HANDS})
    else:
        assert met["none-1"] < 0.01
        assert [met[f"{hand}-1"] for hand in HANDS] == pytest.approx([4 / 3] * 3, abs=0.01)
    assert pool(second, "none") == {"still": None}
    assert second.algorithms["pool-rock-right"].settings["draw"] == "weights"


def test_a_solution_is_computed_for_the_opponents_that_a_member_meets(
    make: Make, folder: Folder
) -> None:
    """Without scissors, paper dominates."""
    members: dict[str, Any] = {**HANDS, "rock": {"role": "left", "meets": ["paper", "rock"]}}
    league = make(members=members, interchangeable=SIDES, opponents={"draw": "nash"})
    place = folder(league, 1, hands)
    assert pool(make_round(league, place, 2), "rock") == {"paper-1": 2.0}


def test_sides_that_differ_are_drawn_by_their_own_weights(make: Make, folder: Folder) -> None:
    """Left's two members get 2, -1 and -1, 1 against right's: both play their first with 2/5."""
    members = {name: {"role": "left" if name < "c" else "right"} for name in "abcd"}
    league = make(members=members, opponents={"draw": "nash"})
    place = folder(league)
    train(league, place, 1)
    won = {"ac": 2.0, "ad": -1.0, "bc": -1.0, "bd": 1.0}
    play(league, place, 1, lambda left, right: ((w := won.get(left[0] + right[0], 0.0)), -w))
    second = make_round(league, place, 2)
    assert pool(second, "a") == pytest.approx({"c-1": 0.8, "d-1": 1.2})
    assert pool(second, "c", "left") == pytest.approx({"a-1": 0.8, "b-1": 1.2})


def test_the_worst_member_takes_over_weights_and_settings_of_the_best(
    make: Make, folder: Folder
) -> None:
    league = make(members=TWO, exploit=EXPLOIT)
    begun = {name: t.settings["lr"] for name, t in league.templates.items()}
    assert begun["a"] != begun["z"]  # settings that members do not give are drawn
    assert begun["b"] == 0.01
    place = folder(league, 2, a=1.0, z=-1.0)
    assert take_over(league, place, 2) is None
    assert take_over(league, place, 3) == ("z", "a")
    third = make_round(league, place, 3)
    newest = str(place.round(2) / "runs" / "a" / "checkpoints" / "last" / "left")
    assert third.algorithms["z"].initialize_from == newest
    assert third.algorithms["a"].initialize_from == newest
    assert third.algorithms["a"].settings["lr"] == begun["a"]
    assert third.algorithms["z"].settings["lr"] / begun["a"] in (0.8, 1.25)
    assert make_round(league, place, 3) == third  # a resumed league makes the same round
    train(league, place, 3)
    kept = make_round(league, place, 4).algorithms["z"]
    assert kept.settings == third.algorithms["z"].settings
    assert "/03/runs/z/" in kept.initialize_from


@pytest.mark.parametrize(
    ("parameter", "value", "may_be"),
    [
        ({"choice": [1, 2, 4, 8]}, 2, {1, 4}),
        ({"choice": [1, 2, 4, 8]}, 8, {4}),
        ({"choice": [1]}, 1, {1}),
        ({"choice": [1, 2]}, 3, {1, 2}),
        ({"uniform": [0.0, 1.0]}, 0.4, {0.32, 0.5}),
        ({"loguniform": [0.1, 1.0]}, 1.0, {0.8, 1.0}),
    ],
)
def test_a_setting_that_is_taken_over_moves_one_step_within_its_limits(
    parameter: dict[str, list[Any]], value: Any, may_be: set[Any]
) -> None:
    template = AlgorithmTemplate(settings={"x": value})
    how = {"settings.x": ParameterConfig(**parameter)}
    assert {round(explored(template, how, s).settings["x"], 9) for s in range(20)} == may_be
