"""Joint records say how long a server took since the one before."""

from __future__ import annotations

from muxrl.orchestrator.launch.tally import LatencyRecords
from muxrl.servers.network.latency import Latencies


def test_a_record_is_of_the_time_since_the_last_one() -> None:
    records, exchanges = LatencyRecords(), Latencies()

    def recorded(seconds: float, number: int) -> dict[str, float]:
        for _ in range(number):
            exchanges.add(seconds)
        records.receive("ppo", {"exchange": list(exchanges.counts)})
        return records.record("ppo")

    assert recorded(0.0016, 100) == {"exchange_p50_s": 0.00175, "exchange_p99_s": 0.002}
    later = recorded(0.6, 100)
    assert 0.5 < later["exchange_p50_s"] < later["exchange_p99_s"] < 0.7, "not of all so far"
    assert records.record("ppo") == {}, "nothing was reported since"
    assert recorded(0.6, 0) == {}, "nothing was asked since"
    assert records.record("never heard of") == {}


def test_the_next_process_of_a_server_counts_from_zero() -> None:
    records, exchanges = LatencyRecords(), Latencies()
    for _ in range(9):
        exchanges.add(0.6)
    records.receive("ppo", {"exchange": list(exchanges.counts)})
    records.record("ppo")
    records.forget("ppo")
    assert records.record("ppo") == {}
    again = Latencies()
    again.add(0.6)
    records.receive("ppo", {"exchange": list(again.counts)})
    assert records.record("ppo").keys() == {"exchange_p50_s", "exchange_p99_s"}


def test_a_report_that_was_overtaken_says_nothing() -> None:
    records, exchanges = LatencyRecords(), Latencies()
    early = list(exchanges.counts)
    exchanges.add(0.6)
    records.receive("ppo", {"exchange": list(exchanges.counts)})
    records.record("ppo")
    records.receive("ppo", {"exchange": early})
    assert records.record("ppo") == {}
