"""Every state and event: either in the table, or refused in words."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.protocol.episode import TRANSITIONS, EpisodeEvent, EpisodeState, EpisodeStateMachine
from muxrl.protocol.errors import OutOfOrder

PAIRS = list(itertools.product(EpisodeState, EpisodeEvent))


def machine_in(state: EpisodeState) -> EpisodeStateMachine:
    machine = EpisodeStateMachine("3f2a")
    machine.state = state
    machine.t = 5
    return machine


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_each_event_moves_on_or_is_refused_and_changes_nothing(
    state: EpisodeState, event: EpisodeEvent
) -> None:
    machine = machine_in(state)
    target = TRANSITIONS.get((state, event))
    if target is None:
        for verb in (machine.handle, machine.check):
            with pytest.raises(
                OutOfOrder, match=f"episode 3f2a is {state} at t=5 and cannot {event}"
            ):
                verb(event)
        assert (machine.state, machine.t) == (state, 5)
        return
    machine.check(event)
    assert (machine.state, machine.t) == (state, 5)
    machine.handle(event)
    assert machine.state is target
    assert machine.t == 5 + (event is EpisodeEvent.OBSERVE)


def test_the_whole_table() -> None:
    idle, observing, acting, ended, aborted = EpisodeState
    start, observe, act, end, abort = EpisodeEvent
    table = {
        (idle, start): observing,
        (idle, abort): aborted,
        (observing, observe): acting,
        (observing, end): ended,
        (observing, abort): aborted,
        (acting, act): observing,
        (acting, abort): aborted,
        (ended, end): ended,
        (ended, abort): ended,
        (aborted, end): aborted,
        (aborted, abort): aborted,
    }
    assert table == TRANSITIONS


def test_an_end_is_final() -> None:
    for state in (EpisodeState.ENDED, EpisodeState.ABORTED):
        assert machine_in(state).is_over
        assert {target for (s, _), target in TRANSITIONS.items() if s is state} == {state}
    assert not any(machine_in(s).is_over for s in list(EpisodeState)[:3])


@given(st.integers(0, 5), st.integers(-3, 9))
def test_the_step_before_is_a_repeat_and_only_that(awaited: int, t: int) -> None:
    machine = EpisodeStateMachine("3f2a")
    machine.handle(EpisodeEvent.START)
    for _ in range(awaited):
        machine.handle(EpisodeEvent.OBSERVE)
        machine.handle(EpisodeEvent.ACT)
    if t == awaited:
        assert not machine.is_repeat(t)
    elif t == awaited - 1 and t >= 0:
        assert machine.is_repeat(t)
    else:
        with pytest.raises(OutOfOrder, match=f"awaits t={awaited}, got t={t}; .*second") as refusal:
            machine.is_repeat(t)
        assert (refusal.value.expected, refusal.value.got) == (f"t={awaited}", f"t={t}")


@given(st.lists(st.sampled_from(EpisodeEvent), max_size=12))
def test_t_counts_the_steps_that_were_observed(events: list[EpisodeEvent]) -> None:
    machine = EpisodeStateMachine("3f2a")
    observed = 0
    for event in events:
        if (machine.state, event) in TRANSITIONS:
            machine.handle(event)
            observed += event is EpisodeEvent.OBSERVE
    assert machine.t == observed
