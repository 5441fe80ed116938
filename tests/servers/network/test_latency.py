"""Counts in buckets with fixed bounds, and the quantiles that are computed from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.servers.network.latency import BOUNDS_S, Latencies, quantile

TIMES_S = st.floats(BOUNDS_S[0], BOUNDS_S[-1], exclude_min=True)


def counted(seconds: list[float]) -> Latencies:
    latencies = Latencies()
    for one in seconds:
        latencies.add(one)
    return latencies


@given(st.lists(TIMES_S, min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_true_one(times: list[float], share: float) -> None:
    found = quantile(counted(times).counts, share)
    true = sorted(times)[math.ceil(share * len(times)) - 1]
    assert found is not None
    assert 1 / 1.7 < found / true < 1.7


def test_times_are_taken_to_be_even_within_a_bucket() -> None:
    counts = counted([0.0016] * 4).counts
    assert quantile(counts, 0.5) == pytest.approx(0.00175)
    assert quantile(counts, 1.0) == pytest.approx(0.002)


def test_the_quantiles_of_the_longest_times_and_of_none() -> None:
    assert quantile(counted([1e4]).counts, 0.5) == BOUNDS_S[-1]
    assert quantile(counted([]).counts, 0.5) is None
