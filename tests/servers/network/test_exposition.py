"""Prometheus's own parser reads the metrics text back as it was written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from muxrl.servers.network.exposition import Family, counter, exposition, gauge, histogram
from muxrl.servers.network.latency import BOUNDS_S, Latencies


@given(st.text(), st.text(), st.floats())
def test_every_name_and_number_comes_back(server_id: str, label: str, value: float) -> None:
    text = exposition([Family("gauge", "x", "About x.", {(label,): value}, ("who",))], server_id)
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert (family.name, family.type, family.documentation) == ("muxrl_x", "gauge", "About x.")
    assert sample.labels == {"server": server_id, "who": label}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


def test_unknown_metrics_are_left_out() -> None:
    families = [gauge("lag", "Lag.", None), counter("steps_total", "Steps.", 3)]
    lag, steps = text_string_to_metric_families(exposition(families, "ppo"))
    assert lag.samples == []
    assert [(s.name, s.value) for s in steps.samples] == [("muxrl_steps_total", 3.0)]


def test_a_histogram_counts_what_was_at_most_so_long() -> None:
    latencies = Latencies()
    for seconds in (0.0015, 0.0016, 0.3, 500.0):
        latencies.add(seconds)
    text = exposition([histogram("exchange_seconds", "Exchanges.", latencies)], "ppo")
    (family,) = text_string_to_metric_families(text)
    assert family.type == "histogram"
    assert {s.labels["server"] for s in family.samples} == {"ppo"}
    buckets = {float(s.labels["le"]): s.value for s in family.samples if "le" in s.labels}
    assert list(buckets) == [*BOUNDS_S, math.inf]
    assert {at: buckets[at] for at in (0.001, 0.0015, 0.002, 0.2, 0.3, 100.0, math.inf)} == {
        **{0.001: 0, 0.0015: 1, 0.002: 2, 0.2: 2},
        **{0.3: 3, 100.0: 3, math.inf: 4},
    }
    sums = {s.name: s.value for s in family.samples if "le" not in s.labels}
    assert sums == {
        "muxrl_exchange_seconds_sum": pytest.approx(500.3031),
        "muxrl_exchange_seconds_count": 4,
    }
