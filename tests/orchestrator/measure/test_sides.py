"""Names and returns show which agents play against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from muxrl.orchestrator.measure.sides import find_sides, play_against_each_other

RNG = np.random.default_rng(0)
WON = RNG.choice([-1.0, 1.0], 40)
NOISE = RNG.normal(size=(4, 40))

Returns = Mapping[str, Sequence[float | None]]


def sides(**returns: Sequence[float | None] | np.ndarray) -> dict[str, tuple[str, ...]]:
    return find_sides([{a: list(values) for a, values in returns.items()}], list(returns))


def test_two_agents_whose_returns_sum_to_zero_are_two_sides() -> None:
    assert sides(player_0=WON, player_1=-WON) == {"player_0": ("player_0",),
                                                  "player_1": ("player_1",)}  # fmt: skip


def test_an_agent_that_always_wins_is_one_side() -> None:
    """Greedy policies in a game without chance play the same episode every time."""
    assert sides(left=[1.0] * 5, right=[-1.0] * 5) == {"left": ("left",), "right": ("right",)}


def test_agents_that_always_return_the_same_are_on_one_side() -> None:
    """This holds with an episode in which they are missing, too."""
    won, lost = [None, *WON], [None, *-WON]
    found = sides(player_0=won, player_1=lost, player_2=won, player_3=lost)
    assert found == {
        "player_0+player_2": ("player_0", "player_2"),
        "player_1+player_3": ("player_1", "player_3"),
    }


def test_names_tell_sides_apart_if_returns_do_not_sum_to_zero() -> None:
    found = sides(seeker_0=3 * WON + NOISE[0], seeker_1=3 * WON + NOISE[1], hider_0=-WON + 5)
    assert found == {"seeker": ("seeker_0", "seeker_1"), "hider": ("hider_0",)}


def test_agents_that_share_a_fixed_sum_are_against_each_other() -> None:
    share = RNG.random(40)
    assert list(sides(a=share, b=10 - share)) == ["a", "b"]


@pytest.mark.parametrize(
    "returns",
    [
        {"driver_0": WON, "driver_1": WON},
        {"speaker_0": WON, "listener_0": WON},
        {"speaker_0": 2 * WON, "listener_0": WON},
        {"driver_0": NOISE[0], "driver_1": NOISE[1]},
        {"speaker": NOISE[0], "listener": NOISE[1]},
        {"a": [0.0] * 30, "b": [0.0] * 30},
        {"a": [2.0] * 30, "b": [3.0] * 30},
        {"a": [None] * 30, "b": WON[:30]},
        {"alone": WON},
        {},
    ],
    ids=str,
)
def test_a_team_has_no_sides(returns: Returns) -> None:
    assert find_sides([returns], list(returns)) == {}
    assert not play_against_each_other([returns], list(returns))


def test_a_few_episodes_are_not_enough_for_a_sum_that_is_not_zero() -> None:
    assert sides(a=[1.0, 0.0], b=[0.0, 1.0]) == {}
    assert sides(a=[1.0, 0.0] * 10, b=[0.0, 1.0] * 10) != {}


def test_agents_that_are_away_take_no_part() -> None:
    away: list[float | None] = [None] * 40
    assert list(sides(player_0=WON, player_1=-WON, player_2=away)) == ["player_0", "player_1"]


def test_each_for_itself_has_too_many_sides_to_be_judged_one_at_a_time() -> None:
    table = RNG.normal(size=(6, 40))
    table -= table.mean(axis=0)
    returns = {f"player_{i}": list(row) for i, row in enumerate(table)}
    assert find_sides([returns], list(returns)) == {}
    assert play_against_each_other([returns], list(returns))


@given(arrays(float, (3, 30), elements=st.floats(-100, 100)))
def test_each_agent_is_on_exactly_one_side(table: np.ndarray) -> None:
    table = np.vstack([table, -table.sum(axis=0)])
    returns = {f"player_{i}": list(row) for i, row in enumerate(table)}
    found = find_sides([returns], list(returns))
    members = [agent for side in found.values() for agent in side]
    assert sorted(members) == (sorted(returns) if found else [])
    assert len(found) != 1


def test_players_that_always_draw_show_their_sides_when_they_act_at_random() -> None:
    """Two players that have learned to the end always draw, so their returns show no sides."""
    drawn = {"left": [0.0] * 40, "right": [0.0] * 40}
    at_random = {"left": list(WON), "right": list(-WON)}
    assert find_sides([drawn], ["left", "right"]) == {}
    assert list(find_sides([at_random, drawn], ["left", "right"])) == ["left", "right"]
    assert list(find_sides([drawn, at_random], ["left", "right"])) == ["left", "right"]
    assert play_against_each_other([at_random, drawn], ["left", "right"])
    assert not play_against_each_other([drawn, drawn], ["left", "right"])
