"""Ratios, tables and files of a race, and what is measured of steps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.peers.contest import OURS, Failure, Played, Updated
from benchmarks.peers.findings import Findings, race_table, ratios, report, update_table
from benchmarks.peers.race import measured, read_steps
from benchmarks.peers.simulation import MOMENT
from benchmarks.peers.updates import UpdateLog, trained_env_steps
from benchmarks.peers.work import AGENTS, Setup

OLD = "RLlib 2.6.3, remote"
ONE, TWO = Setup(1, 1), Setup(2, 1)


def played(contestant: str, number: int, rate: float, setup: Setup = TWO) -> Played:
    trained = {server.name: 1_000 for server in setup.servers}
    return Played(contestant, setup, number, rate, (1.0, 2.0, 300.0), 2_000, trained, 0.5)


def findings(
    rounds: list[Played],
    updates: list[Updated] | None = None,
    failures: list[Failure] | None = None,
) -> Findings:
    versions = {"muxrl": {"ray": "2.60.0"}}
    return Findings(
        "today",
        "command",
        "abc",
        "2 cores",
        versions,
        5.0,
        2,
        rounds,
        updates or [],
        failures or [],
    )


def test_a_ratio_is_of_the_same_round_and_setup() -> None:
    found = findings(
        [
            played(OURS, 0, 100.0),
            played(OLD, 0, 10.0),
            played(OLD, 1, 10.0),
            played(OURS, 1, 50.0),
            played(OURS, 0, 7.0, ONE),
            played(OLD, 2, 10.0),  # ours failed in that round
        ]
    )
    assert ratios(found, OLD, OURS, TWO) == [10.0, 5.0]
    assert ratios(found, OLD, OURS, ONE) == []


def test_a_row_has_medians_ranges_and_what_each_server_trained() -> None:
    found = findings(
        [
            played(c, n, r)
            for n, (a, b) in enumerate([(90, 9), (80, 20)])
            for c, r in ((OURS, a), (OLD, b))
        ]
    )
    ours, old = race_table(found).splitlines()[3:]
    assert ours == f"| {OURS} | 85 (80..90) | 1.00 | 2.0 | 300 | 50, 50 |  |"
    assert old.endswith("| 14 (9..20) | 1.00 | 2.0 | 300 | 50, 50 | 7.00 (4.00..10.00) |")


def test_updates_are_compared_within_rounds() -> None:
    found = findings(
        [],
        [
            Updated(who, number, ms, 0.0)
            for number, both in enumerate([(10, 20), (20, 20)])
            for who, ms in zip(("muxrl", "RLlib 2.60"), both, strict=True)
        ],
    )
    ours, rllib = update_table(found).splitlines()[2:]
    assert ours == "| muxrl | 15 (10..20) |  |"
    assert rllib == "| RLlib 2.60 | 20 (20..20) | 1.50 (1.00..2.00) |"


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


def test_steps_in_the_measured_time_count_and_a_stall_at_its_end_does() -> None:
    # Steps of 0 s at 0, 1, 2 and 3 s, and no more: the simulation stands still until 10 s.
    one = np.array([[t, t] for t in (0.0, 1.0, 2.0, 3.0)])
    rate, (p50, p99, longest) = measured([one], 0.5, 10.5)
    assert rate == 0.3
    assert (p50, longest) == (1_000.0, 7_500.0)
    assert p99 == pytest.approx(np.percentile([1_000, 1_000, 1_000, 7_500], 99))
    assert measured([one, one], 0.5, 10.5)[0] == 0.6


def test_a_simulation_that_made_no_step_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "steps-asked.bin").touch()
    (tmp_path / "steps-played.bin").write_bytes(MOMENT.pack(1.0, 2.0) + b"half")
    assert [one.tolist() for one in read_steps(tmp_path)] == [[[1.0, 2.0]]]


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_servers_share_all_agents(num_servers: int) -> None:
    servers = Setup(num_servers, 1).servers
    assert tuple(agent for server in servers for agent in server.agents) == AGENTS
    assert len({server.name for server in servers}) == num_servers


def test_a_line_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    assert trained_env_steps(tmp_path, "ppo_0") == 0
    UpdateLog(tmp_path, "ppo_0").add(1_000)
    with (tmp_path / "ppo_0.jsonl").open("a") as file:
        file.write('{"env_st')
    assert trained_env_steps(tmp_path, "ppo_0") == 1_000
