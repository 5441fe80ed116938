"""However it is shared out, and whoever is lost or slow: all of it is given, and no step more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxrl.orchestrator.supervise import allowances as module
from muxrl.orchestrator.supervise.allowances import Allowances


class Call:
    """Of an actor; it returns once it `is_heard`, and for `allow` all is used up."""

    is_heard = False
    answer: int | None = None


class Actor:
    """Plays as many steps as it was allowed, and hears some calls late, in any order."""

    def __init__(self) -> None:
        self.allowed = self.played = 0
        self.allow = SimpleNamespace(remote=self._allow)
        self.give_back = SimpleNamespace(remote=Call)

    def _allow(self, num_env_steps: int) -> Call:
        self.allowed += num_env_steps
        return Call()

    def play(self, share: float) -> None:
        self.played += round(share * (self.allowed - self.played))

    def hear(self, call: Call) -> None:
        """Gives back half of what is left, as `PlayLoop.give_back` does."""
        call.answer = (self.allowed - self.played) // 2
        self.allowed -= call.answer


@pytest.fixture(autouse=True, scope="module")
def answers() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "outcome", lambda call: call.answer)
        yield


def take_all(allowances: Allowances, actors: dict[str, Actor], slow: str = "") -> None:
    """As `SimulationActors.watch` does, until nothing returns any more."""
    while True:
        done = [c for n, c in allowances._calls.items() if actors[n].allowed == actors[n].played]
        for name, call in allowances._asked.items():
            if name != slow:
                actors[name].hear(call)
                done.append(call)
        if not done:
            return
        for call in done:
            allowances.take(call)


SHARES = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(SHARES, st.sampled_from(["", "a", "b"])), min_size=1, max_size=6),
    st.integers(0, 200),
    st.integers(0, 5),
)
def test_all_is_given_and_no_step_more(
    rounds: list[tuple[list[float], str]], budget: int, lost_in: int
) -> None:
    allowances, actors = Allowances(), {name: Actor() for name in "abc"}
    for name, actor in actors.items():
        allowances.add(name, actor)
    before = 0
    for number, (shares, slow) in enumerate([*rounds, *[([1.0] * 3, "")] * 20]):
        if number == lost_in:  # what it has played counts
            before = actors.pop("a").played
            allowances.drop("a")
        for name, actor in actors.items():
            allowances.note(name, actor.played)
        allowances.share_out(budget - before - sum(actor.played for actor in actors.values()))
        for actor, share in zip(actors.values(), shares, strict=False):
            actor.play(share)
        take_all(allowances, actors, slow)
        assert sum(actor.allowed for actor in actors.values()) <= budget - before
    assert before + sum(actor.played for actor in actors.values()) == budget
    assert not allowances.calls


def test_who_has_used_up_its_own_gets_half_of_what_another_has_left() -> None:
    allowances, actors = Allowances(), {name: Actor() for name in ("fast", "slow")}
    for name, actor in actors.items():
        allowances.add(name, actor)
    allowances.share_out(1_000)
    actors["fast"].play(1.0)
    take_all(allowances, actors)
    assert [actor.allowed for actor in actors.values()] == [750, 250]
