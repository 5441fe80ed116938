"""Running statistics equal numpy's over the same data, however the data was split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxrl.servers.agents.running_statistics import RunningStatistics


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    shift=st.sampled_from([0.0, 1e3, -1e8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_running_statistics_are_numpys_over_all_batches(
    sizes: list[int], shift: float, seed: int
) -> None:
    batches = [np.random.default_rng(seed).normal(shift, 2.0, (n, 2, 3)) for n in sizes]
    statistics = RunningStatistics((2, 3))
    for batch in batches:
        statistics.add(batch)
    whole = np.concatenate(batches)
    assert statistics.count == len(whole)
    np.testing.assert_allclose(statistics.mean, whole.mean(axis=0), rtol=1e-12, atol=1e-12)
    if len(whole) > 1:
        # The precision that float64 leaves to a deviation of 2 beside a mean of 1e8.
        np.testing.assert_allclose(statistics.variance, whole.var(axis=0), rtol=1e-6, atol=1e-6)


def test_a_number_counts_to_the_bit_as_in_an_array() -> None:
    in_arrays, alone = RunningStatistics(()), RunningStatistics(())
    for number in np.random.default_rng(0).normal(3.0, 5.0, 100).tolist():
        in_arrays.add(np.array([number]))
        assert alone.add_number(number) == in_arrays.variance
    assert alone.get_state() == in_arrays.get_state()


def test_statistics_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"of the shape \[2\], but arrays of the shape \[3\] are"):
        RunningStatistics((3,)).set_state(RunningStatistics((2,)).get_state())
