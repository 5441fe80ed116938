"""All env steps of a budget are granted and not one more, even if players are lost or slow."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.orchestrator.launch.test_evaluations import settled

from muxrl.orchestrator.supervise.grants import Grants


class Player:
    """Plays the steps that it is granted; its call returns once all are used up."""

    def __init__(self, grants: Grants, name: str) -> None:
        self.allowed = self.played = 0
        self.gifts: list[int] = []
        self._call: asyncio.Future[None] | None = None
        self.served = asyncio.create_task(grants.serve(name, self.allow))

    async def allow(self, num_env_steps: int) -> None:
        self.allowed += num_env_steps
        self.gifts.append(num_env_steps)
        self._call = asyncio.Future()
        await self._call

    async def play(self, num: int) -> None:
        self.played += min(num, self.allowed - self.played)
        if self.played == self.allowed and self._call is not None and not self._call.done():
            self._call.set_result(None)
        await settled()


async def begun(grants: Grants, *names: str) -> list[Player]:
    players = [Player(grants, name) for name in names]
    await settled()
    return players


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 90)), max_size=40),
    st.integers(0, 400),
    st.integers(0, 40),
    st.integers(1, 16),
    st.sets(st.integers(0, 40)),
)
def test_the_whole_budget_is_granted_and_no_step_more(
    plays: list[tuple[str, int]], budget: int, lost_at: int, least: int, reports: set[int]
) -> None:
    async def play() -> None:
        grants = Grants(least)
        players = dict(zip("abc", await begun(grants, *"abc"), strict=True))
        of_lost = 0

        async def report() -> None:
            for name, player in players.items():
                grants.note(name, player.played)
            grants.extend(budget - of_lost - sum(player.played for player in players.values()))
            await settled()

        await report()
        for number, (name, num) in enumerate(plays):
            if number == lost_at:
                lost = players.pop("a")
                of_lost = lost.played
                lost.served.cancel()
                await settled()
                await report()
            if name in players:
                await players[name].play(num)
            if number in reports:
                await report()
            assert of_lost + sum(player.allowed for player in players.values()) <= budget
        for _ in range(50):
            if grants.used_up.is_set():
                break
            for player in players.values():
                await player.play(1_000)
            await report()
        assert of_lost + sum(player.played for player in players.values()) == budget

    run(play())


def test_a_player_that_has_used_up_its_grant_gets_half_of_its_share_of_the_rest() -> None:
    async def play() -> None:
        grants = Grants(10)
        fast, slow = await begun(grants, "fast", "slow")
        assert grants.used_up.is_set(), "there is nothing yet"
        grants.extend(1_000)
        await settled()
        assert (fast.gifts, slow.gifts) == ([250], [187])
        while fast.allowed + slow.allowed != 1_000:
            await fast.play(1_000)
        assert fast.gifts[:3] == [250, 140, 105]
        assert min(fast.gifts[:-1]) >= 10
        assert not grants.used_up.is_set(), "one still plays"
        await slow.play(1_000)
        await fast.play(1_000)
        assert grants.used_up.is_set()

    run(play())


def test_a_player_alone_gets_all_at_once_and_the_steps_that_it_played_while_held() -> None:
    async def play() -> None:
        grants = Grants()
        (alone,) = await begun(grants, "a")
        grants.extend(100)
        await settled()
        await alone.play(100)
        grants.note("a", 107)
        grants.extend(50)
        await settled()
        assert alone.gifts == [100, 57], "its own count is 7 beyond what it may play"

    run(play())


def test_an_error_of_a_player_that_cannot_be_granted_more_is_raised() -> None:
    async def cannot(num_env_steps: int) -> None:
        raise AttributeError("allow")

    async def play() -> None:
        grants = Grants()
        grants.extend(100)
        with pytest.raises(AttributeError):
            await grants.serve("a", cannot)

    run(play())
