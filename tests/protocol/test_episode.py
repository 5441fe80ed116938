"""Of the steps of an episode, the awaited one is taken, the one before is a repeat, others are
refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.protocol.episode import is_repeat
from muxrl.protocol.errors import OutOfOrder


@given(st.integers(0, 5), st.integers(-3, 9))
def test_the_step_before_is_a_repeat_and_only_that(awaited: int, t: int) -> None:
    if t == awaited or (t == awaited - 1 and t >= 0):
        assert is_repeat("3f2a", awaited, t) is (t < awaited)
        return
    with pytest.raises(OutOfOrder, match=f"awaits t={awaited}, got t={t}; .*second") as refusal:
        is_repeat("3f2a", awaited, t)
    assert (refusal.value.expected, refusal.value.got) == (f"t={awaited}", f"t={t}")
