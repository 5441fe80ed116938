"""Ratios, tables and files of a race, and the numbers that are computed from steps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.peers.contest import OURS, Failure, Played, Updated
from benchmarks.peers.findings import Findings, ratios, report
from benchmarks.peers.race import measured
from benchmarks.peers.work import Setup

OLD = "RLlib 2.6.3, remote"
ONE, TWO = Setup(1, 1), Setup(2, 1)


def played(contestant: str, number: int, rate: float, setup: Setup = TWO) -> Played:
    trained = {server.name: 1_000 for server in setup.servers}
    return Played(contestant, setup, number, rate, (1.0, 2.0, 300.0), 2_000, trained, 0.5)


def findings(rounds: list[Played], updates: list[Updated], failures: list[Failure]) -> Findings:
    versions = {"muxrl": {"ray": "2.60.0"}}
    made = "today", "command", "abc", "2 cores", versions, 5.0, 2
    return Findings(*made, rounds, updates, failures)


def test_a_ratio_is_of_the_same_round_and_setup() -> None:
    found = findings(
        [
            played(OURS, 0, 100.0),
            played(OLD, 0, 10.0),
            played(OLD, 1, 10.0),
            played(OURS, 1, 50.0),
            played(OURS, 0, 7.0, ONE),
            played(OLD, 2, 10.0),  # our contestant failed in that round
        ],
        [],
        [],
    )
    assert ratios(found, OLD, OURS, TWO) == [10.0, 5.0]
    assert ratios(found, OLD, OURS, ONE) == []


def test_findings_survive_their_file(tmp_path: Path) -> None:
    found = findings(
        [played(OURS, 0, 1.5)],
        [Updated("muxrl", 0, 1.0, 3.0)],
        [Failure(OLD, 0, "it died:\nhere\nat last")],
    )
    found.write(tmp_path / "findings.json")
    assert Findings.read(tmp_path / "findings.json") == found
    page = report(found)
    assert f"- round 1, {OLD}: it died: at last\n" in page
    assert "0.5 to 3.0" in page
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(msgspec.ValidationError):
        Findings.read(tmp_path / "other.json")


def test_steps_within_the_measured_time_and_a_stall_at_its_end_count() -> None:
    # Steps of 0 s at 0, 1, 2 and 3 s; then the simulation stands still until 10 s.
    one = np.array([[t, t] for t in (0.0, 1.0, 2.0, 3.0)])
    rate, (p50, p99, longest) = measured([one], 0.5, 10.5)
    assert rate == 0.3
    assert (p50, longest) == (1_000.0, 7_500.0)
    assert p99 == pytest.approx(np.percentile([1_000, 1_000, 1_000, 7_500], 99))
    assert measured([one, one], 0.5, 10.5)[0] == 0.6
