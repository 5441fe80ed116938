"""Advantages, sequences and minibatches equal their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muxrl.servers.algorithms.rollout import (
    Padded,
    Rollout,
    advantages_of,
    explained_variance,
    minibatches,
)

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@given(LENGTHS, st.integers(0, 10_000), st.sampled_from([0.0, 0.7, 1.0]))
def test_advantages_are_the_discounted_sums_of_errors(
    lengths: list[int], seed: int, lambda_: float
) -> None:
    rng, gamma = np.random.default_rng(seed), 0.9
    values = rng.normal(size=sum(lengths) + len(lengths)).astype(np.float32)
    rewards = rng.normal(size=sum(lengths)).astype(np.float32)
    terminated = rng.random(len(lengths)) < 0.5
    played = Rollout(np.array(lengths), terminated, {}, np.zeros(0), rewards, {}, np.zeros(0))
    found = advantages_of(values, played, gamma=gamma, lambda_=lambda_)
    expected, v, r = [], 0, 0
    for length, is_over in zip(lengths, terminated, strict=True):
        own = [*values[v : v + length], 0.0 if is_over else values[v + length]]
        errors = [rewards[r + t] + gamma * own[t + 1] - own[t] for t in range(length)]
        for t in range(length):
            later = range(t, length)
            expected.append(sum((gamma * lambda_) ** (k - t) * errors[k] for k in later))
        v, r = v + length + 1, r + length
    assert found == pytest.approx(expected, abs=1e-4)


@given(LENGTHS, st.integers(1, 4), st.booleans())
def test_sequences_hold_every_step_once_in_order_and_end_with_their_piece(
    lengths: list[int], limit: int, has_last: bool
) -> None:
    padded = Padded.of(np.array(lengths), limit, has_last=has_last)
    total = sum(lengths) + has_last * len(lengths)
    assert padded.rows[padded.is_step].tolist() == list(range(total))
    assert padded.rows.shape[1] <= limit + has_last
    piece = np.repeat(np.arange(len(lengths)), np.array(lengths) + has_last)
    for rows, is_step, begin in zip(padded.rows, padded.is_step, padded.begins, strict=True):
        assert rows[0] == begin
        assert len(set(piece[rows[is_step]])) == 1
        assert not is_step[np.argmin(is_step) :].any() or is_step.all()  # padding comes last


@given(st.integers(1, 40), st.one_of(st.none(), st.integers(1, 50)), st.integers(1, 3))
def test_every_pass_has_each_row_once_in_minibatches_of_equal_size(
    num: int, size: int | None, epochs: int
) -> None:
    rng = np.random.default_rng(0)
    found: list[Any] = [np.arange(num)[rows] for rows in minibatches(num, num, size, epochs, rng)]
    each = len(found) // epochs
    assert each == (1 if size is None else -(-num // size))
    for epoch in range(epochs):
        parts = found[epoch * each : (epoch + 1) * each]
        assert sorted(np.concatenate(parts).tolist()) == list(range(num))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_sequences_make_as_many_minibatches_as_their_transitions_ask_for() -> None:
    assert len(list(minibatches(10, 95, 20, 1, None))) == 5
    assert len(list(minibatches(3, 95, 20, 1, None))) == 3


def test_values_explain_the_variance_that_there_is() -> None:
    targets = torch.tensor([1.0, 2.0, 4.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(torch.ones(3), targets) == 0.0
