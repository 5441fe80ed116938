"""However it is shared out, and whoever is lost: all of it is given, and no step more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.supervise.allowances import Allowances


class Actor:
    """Plays as many steps as it was allowed, in parts."""

    def __init__(self) -> None:
        self.allowed = self.played = 0
        self.allow = SimpleNamespace(remote=self._allow)

    def _allow(self, num_env_steps: int) -> object:
        self.allowed += num_env_steps
        return object()

    def play(self, share: float) -> int:
        self.played += int(share * (self.allowed - self.played))
        return self.played


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 200),
    st.integers(0, 5),
)
def test_all_is_given_and_no_step_more(
    rounds: list[list[float]], budget: int, lost_in: int
) -> None:
    allowances, actors = Allowances(), {name: Actor() for name in "abc"}
    for name, actor in actors.items():
        allowances.add(name, actor)
    before: list[Any] = []
    for number, shares in enumerate(rounds):
        if number == lost_in:  # what it has played counts
            before.append(actors.pop("a"))
            allowances.drop("a")
        played = sum(actor.played for actor in [*actors.values(), *before])
        allowances.share_out(budget - played)
        given_out = [actor.allowed for actor in actors.values()] + [a.played for a in before]
        assert sum(given_out) == budget
        for (name, actor), share in zip(actors.items(), shares, strict=False):
            allowances.note(name, actor.play(share))
    assert len(allowances.calls) <= 3
