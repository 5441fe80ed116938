"""Targets of whole episodes equal numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muxrl.servers.algorithms.qmix.returns import bootstrapped_returns, follow_absent
from muxrl.servers.algorithms.settings.teams import QMIXSettings

GAMMA = 0.5
REWARDS, VALUES = [1.0, 2.0, 3.0], [10.0, 20.0, 40.0]


def column(*numbers: float) -> torch.Tensor:
    """Returns the numbers as ``[1, T, 1]``."""
    return torch.tensor(numbers)[None, :, None]


@pytest.mark.parametrize(
    ("returns", "truncated", "terminated"),
    [
        ({}, [1 + 5, 2 + 10, 3 + 20], [1 + 5, 2 + 10, 3]),
        ({"n_step": 50}, [1 + 1 + 0.75 + 5, 2 + 1.5 + 10, 3 + 20], [2.75, 3.5, 3]),
        ({"td_lambda": 1.0}, [1 + 1 + 0.75 + 5, 2 + 1.5 + 10, 3 + 20], [2.75, 3.5, 3]),
        # Truncated, from the end: 23; 2 + (20 + 23) / 4; 1 + (10 + 12.75) / 4. Terminated: 3; 2 +
        # (20 + 3) / 4; 1 + (10 + 7.75) / 4.
        ({"td_lambda": 0.5}, [6.6875, 12.75, 23], [5.4375, 7.75, 3]),
    ],
    ids=str,
)
def test_returns_of_three_steps(
    returns: dict[str, Any], truncated: list[float], terminated: list[float]
) -> None:
    """Padding does not change the returns."""
    for ends, expected in ((0.0, truncated), (1.0, terminated)):
        for rubbish in ([], [999.0], [999.0] * 4):
            rewards, values = column(*REWARDS, *rubbish), column(*VALUES, *rubbish)
            padding = [0.0] * len(rubbish)
            terminations, mask = column(0, 0, ends, *padding), column(1, 1, 1, *padding)
            own = QMIXSettings(gamma=GAMMA, **returns)
            got = bootstrapped_returns(rewards, values, terminations, mask, own)
            assert got[0, :3, 0].tolist() == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    n_step=st.integers(1, 8),
    width=st.integers(1, 3),
)
def test_n_step_returns_are_n_rewards_and_a_value(
    seed: int, lengths: list[int], n_step: int, width: int
) -> None:
    """The returns equal sums by the definition, in any batch of episodes of unequal length."""
    torch.manual_seed(seed)
    num, longest = len(lengths), max(lengths)
    rewards, values = torch.randn(num, longest, 1), torch.randn(num, longest, width)
    ends = torch.rand(num) < 0.5
    mask, terminated = torch.zeros(num, longest, 1), torch.zeros(num, longest, 1)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1.0
        terminated[row, length - 1] = float(ends[row])
    own = QMIXSettings(gamma=GAMMA, n_step=n_step)
    got = bootstrapped_returns(rewards, values, terminated, mask, own)
    for row, length in enumerate(lengths):
        for t in range(length):
            stop = min(t + n_step, length)
            expected = sum(GAMMA ** (i - t) * rewards[row, i] for i in range(t, stop))
            if not (stop == length and ends[row]):
                expected = expected + GAMMA ** (stop - t) * values[row, stop - 1]
            torch.testing.assert_close(got[row, t], torch.as_tensor(expected).expand(width))


def test_values_reach_past_steps_at_which_a_member_is_absent() -> None:
    # At t = 1, 2, 3, 4 the first member always acts, the second only at 2, the third never again.
    asked = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    values = torch.tensor([[[10.0, 9.0, 9.0], [20.0, 20.0, 9.0], [30.0, 9.0, 9.0], [40.0, 9, 9]]])
    for ends in (0.0, 1.0):
        got = follow_absent(
            values,
            asked,
            column(1, 2, 3, 4),
            column(0, 0, 0, ends),
            torch.ones(1, 4, 1),
            gamma=GAMMA,
        )
        assert got[0, :, 0].tolist() == [10, 20, 30, 40]
        assert got[0, :, 1].tolist() == [2 + 20 / 2, 20, 4, 0]
        assert got[0, :, 2].tolist() == [2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4, 0]


def test_nothing_follows_in_the_padding() -> None:
    got = follow_absent(
        torch.full((1, 4, 1), 7.0),
        torch.tensor([0.0, 1.0, 0.0, 0.0])[None, :, None],
        column(1, 2, 0, 0),
        column(0, 0, 0, 0),
        column(1, 1, 0, 0),
        gamma=GAMMA,
    )
    assert got[0, :2, 0].tolist() == [2 + 7 / 2, 7]
