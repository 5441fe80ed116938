"""However it is given, and whoever is lost or slow: all of it is given, and no step more."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxrl.orchestrator.errors import Ended
from muxrl.orchestrator.supervise.grants import Grants


class Player:
    """Plays what it was given; its call returns once all is used up."""

    def __init__(self) -> None:
        self.allowed = self.played = 0
        self.calls: list[Future[Any]] = []
        self.gifts: list[int] = []

    def call(self, method: str, num_env_steps: int) -> Future[Any]:
        assert method == "allow"
        self.allowed += num_env_steps
        self.gifts.append(num_env_steps)
        self.calls.append(Future())
        return self.calls[-1]

    def kill(self) -> None: ...

    def play(self, num: int) -> None:
        self.played += min(num, self.allowed - self.played)
        if self.played == self.allowed and self.calls and not self.calls[-1].done():
            self.calls[-1].set_result(None)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 90)), max_size=40),
    st.integers(0, 400),
    st.integers(0, 40),
    st.integers(1, 16),
    st.sets(st.integers(0, 40)),
)
def test_all_is_given_and_no_step_more(
    plays: list[tuple[str, int]], budget: int, lost_at: int, least: int, reports: set[int]
) -> None:
    grants, players = Grants(least), {name: Player() for name in "abc"}
    for name, player in players.items():
        grants.add(name, player)
    of_lost = 0

    def report() -> None:
        for name, player in players.items():
            grants.note(name, player.played)
        grants.extend(budget - of_lost - sum(player.played for player in players.values()))

    report()
    for number, (name, num) in enumerate(plays):
        if number == lost_at:
            lost = players.pop("a")
            of_lost = lost.played
            grants.drop("a")
            if lost.calls and not lost.calls[-1].done():
                lost.calls[-1].set_exception(Ended("SIGKILL"))
            report()
        if name in players:
            players[name].play(num)
        if number in reports:
            report()
        assert of_lost + sum(player.allowed for player in players.values()) <= budget
    while not grants.used_up.done():
        for player in players.values():
            player.play(1_000)
        report()
    assert of_lost + sum(player.played for player in players.values()) == budget


def test_who_has_used_up_its_own_gets_half_of_its_share_of_the_rest() -> None:
    grants, fast, slow = Grants(10), Player(), Player()
    grants.add("fast", fast)
    grants.add("slow", slow)
    grants.extend(1_000)
    assert (fast.gifts, slow.gifts) == ([250], [187])
    while fast.allowed + slow.allowed != 1_000:
        fast.play(1_000)
    assert fast.gifts[:3] == [250, 140, 105]
    assert min(fast.gifts[:-1]) >= 10
    assert not grants.used_up.done(), "one still plays"
    slow.play(1_000)
    fast.play(1_000)
    assert grants.used_up.done()


def test_one_that_plays_alone_gets_all_at_once() -> None:
    grants, alone = Grants(), Player()
    grants.add("alone", alone)
    grants.extend(1_000)
    assert alone.gifts == [1_000]


def test_what_one_has_played_while_it_was_held_is_made_up_for() -> None:
    grants, player = Grants(), Player()
    grants.add("a", player)
    grants.extend(100)
    player.play(100)
    grants.note("a", 107)
    grants.extend(50)
    assert player.gifts == [100, 57], "its own count is 7 beyond what it may play"


@pytest.mark.parametrize("is_noted", [True, False])
def test_what_a_lost_one_had_left_goes_to_others(is_noted: bool) -> None:
    """Two of which one is lost in the middle: the run does not stand still short of its budget."""
    grants, players = Grants(), {"a": Player(), "b": Player()}
    for name, player in players.items():
        grants.add(name, player)
    grants.extend(1_000)
    players["a"].play(100)
    if is_noted:
        grants.note("a", 100)
    grants.drop("a")
    grants.extend(1_000 - (100 if is_noted else 0))
    for _ in range(2):  # first what it had already
        players["b"].play(10_000)
    assert players["b"].played == (900 if is_noted else 1_000)
    assert grants.used_up.done()


def test_one_that_cannot_be_given_more_is_named_and_one_that_has_ended_is_not() -> None:
    grants, players = Grants(), {"a": Player(), "b": Player()}
    for name, player in players.items():
        grants.add(name, player)
    grants.extend(100)
    players["a"].calls[-1].set_exception(AttributeError("allow"))
    players["b"].calls[-1].set_exception(Ended("SIGKILL"))
    assert {name: str(error) for name, error in grants.failed.items()} == {"a": "allow"}
    assert not grants.used_up.done()
    grants.drop("a")
    assert not grants.failed
