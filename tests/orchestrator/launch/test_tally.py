from __future__ import annotations

import time

import msgspec
import pytest
from msgspec import to_builtins

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.launch.parameters import ParameterProgress
from muxrl.orchestrator.launch.tally import LatencyRecords, Tally
from muxrl.orchestrator.records.series import MetricCurves, TrainingSeries, mean_of_episodes
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.protocol.messages import Status
from muxrl.servers.network.latency import Latencies


def test_time_before_training_does_not_count() -> None:
    tally = Tally()
    time.sleep(0.05)
    tally.tick()  # the launcher checks its processes during a first evaluation, too
    assert tally.time_s == 0.0
    tally.begin()
    tally.tick()
    assert 0.0 <= tally.time_s < 0.05
    resumed = Tally()
    resumed.restore(Tally().state() | {"time_s": 100.0})
    resumed.tick()
    assert resumed.time_s == 100.0
    resumed.begin()
    resumed.tick()
    assert 100.0 <= resumed.time_s < 101.0


def test_metrics_are_means_over_recent_episodes_that_have_them() -> None:
    tally = Tally()
    assert "metrics" not in to_builtins(tally.row())
    assert tally.metric("win") is None
    won = [{"win": {COMMON: n % 2}, "hits": {"a": 1.0, "b": 3.0}} for n in range(200)]
    tally.add("simulation-0", SimulationReport(10, [{}] * 200, metrics=won))
    assert tally.metric("win") == (0.5, 100)
    late = [{"win": {COMMON: 1.0}}, {"hits": {"b": 5.0}}]
    tally.add("simulation-1", SimulationReport(10, [{}] * 2, metrics=late))
    metrics = to_builtins(tally.row())["metrics"]
    assert metrics == {
        "win": {COMMON: pytest.approx(50 / 99)},
        "hits": {"a": 1.0, "b": pytest.approx((98 * 3 + 5) / 99)},
    }
    again, older = Tally(), Tally()
    again.restore(tally.state())
    older.restore({key: value for key, value in tally.state().items() if key != "values"})
    for one, num in ((tally, 100), (again, 100), (older, 99)):
        assert to_builtins(one.row())["metrics"] == metrics
        assert one.metric("win") == (pytest.approx(0.5 + (0.5 if num == 99 else 1.0) / num), num)
        assert one.metric("hits") == (pytest.approx(2.0 + 3.0 / num), num)


def test_returns_of_servers_are_counted_as_in_evaluations() -> None:
    groups = {"both": ("a", "b"), "both/b": ("b",), "other": ("c",)}
    tally = Tally(groups=groups)
    assert "returns" not in to_builtins(tally.row())
    episodes = [{"a": 0.0}] * 9 + [{"a": 0.0, "b": 10.0}]
    tally.add("simulation-0", SimulationReport(10, episodes))
    row = tally.row()
    assert row.episode_return_mean == {"a": 0.0, "b": 10.0}
    assert row.returns == {"both": 0.5, "both/b": 10.0, "total": 1.0}
    by_agent = {agent: [episode.get(agent) for episode in episodes] for agent in "ab"}
    assert row.returns["both"] == mean_of_episodes(by_agent, ["a", "b"])
    assert row.returns["total"] == mean_of_episodes(by_agent, ["a", "b"], is_sum=True)


def test_metrics_of_servers_weigh_episodes_as_their_returns_do() -> None:
    groups = {"both": ("a", "b"), "both/b": ("b",), "other": ("c",)}
    tally = Tally(groups=groups)
    assert "group_metrics" not in to_builtins(tally.row())
    episodes = [{"a": 0.0}] * 9 + [{"a": 0.0, "b": 10.0}]
    told = [{"hits": dict(one)} for one in episodes]
    told[0]["win"] = {COMMON: 1.0}
    tally.add("simulation-0", SimulationReport(10, episodes, metrics=told))
    row = tally.row()
    assert row.group_metrics["hits"] == {"both": 0.5, "both/b": 10.0, "total": 0.5}
    assert row.group_metrics["hits"]["both"] == row.returns["both"]
    assert row.group_metrics["hits"]["total"] == tally.metric("hits")[0]
    assert row.group_metrics["win"] == {"total": 1.0}
    curves = MetricCurves({"both": ("a", "b")}, most_points=9)
    TrainingSeries({}, curves, most_points=9).add(row)
    older = msgspec.structs.replace(row, env_steps=20, group_metrics={})
    TrainingSeries({}, curves, most_points=9).add(older)
    found = [tuple(point) for point in curves.curves["hits", "both"].points]
    assert found == [(10, 0.5), (20, 5.0)]
    assert {key for key in curves.curves if key[0] == "win"} == {("win", None)}


def test_recent_episodes_are_those_of_all_processes() -> None:
    lessons = {"lessons": [1.0, 2.0], "next_when": {"metric": "index", "at_least": 0.6}}
    tally = Tally(ParameterProgress({"size": lessons}, {}))
    for index, num in enumerate((400, 200)):
        told = [{"index": {COMMON: float(index)}, "size": {COMMON: 1.0}} for _ in range(num)]
        tally.add(
            f"simulation-{index}", SimulationReport(num, [{"a": 3.0 * index}] * num, metrics=told)
        )
    assert tally.parameters.now(0) == {"size": 1.0}
    assert tally.metric("index") == (pytest.approx(1 / 3, abs=0.01), 100)
    row = to_builtins(tally.row())
    assert row["metrics"]["index"][COMMON] == pytest.approx(1 / 3, abs=0.01)
    assert row["episode_return_mean"]["a"] == pytest.approx(1.0, abs=0.03)


def test_a_rarer_metric_is_a_mean_over_as_many_of_its_episodes() -> None:
    tally = Tally()
    for n in range(300):
        told = {"win": {COMMON: float(n >= 200)}} if n % 10 == 0 else {"other": {COMMON: 0.0}}
        tally.add("simulation-0", SimulationReport(n, [{}], metrics=[told]))
    assert tally.metric("win") == (pytest.approx(10 / 30), 30)


def test_a_checkpoint_from_before_metrics_existed_can_be_resumed() -> None:
    tally = Tally()
    state = Tally().state()
    del state["recent_metrics"]
    tally.restore(state)
    assert "metrics" not in to_builtins(tally.row())


def test_counts_of_servers_never_fall_by_a_gateway_or_a_restart() -> None:
    """A simulation may bypass the gateway, and checkpoints are named by these env steps."""
    tally = Tally()
    for num in (500, 200):  # the server went back to its checkpoint
        status = Status("ppo", "ready", num_env_steps=num, num_episodes=num // 10)
        tally.set_external({"ppo": status})
    tally.add("gateway", SimulationReport())
    assert (tally.env_steps, tally.num_episodes) == (500, 50)
    assert not tally.has_played


def test_ever_new_names_of_metrics_do_not_fill_the_memory() -> None:
    tally = Tally()
    for n in range(1_200):
        report = SimulationReport(10, [{}], metrics=[{f"m{n}": {COMMON: 1.0}}])
        tally.add("gateway", report)
    assert tally.metric("m0") == (1.0, 1)
    assert len(tally.state()["values"]) == 1_000


def test_a_record_has_the_latencies_since_the_record_before() -> None:
    records, exchanges = LatencyRecords(), Latencies()
    first = list(exchanges.counts)

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
    records.receive("ppo", {"exchange": first})
    assert records.record("ppo") == {}, "a report that was overtaken"
    records.forget("ppo")  # the next process counts from zero
    exchanges = Latencies()
    assert recorded(0.6, 1).keys() == {"exchange_p50_s", "exchange_p99_s"}


def test_counts_of_a_lost_process_are_kept() -> None:
    tally = Tally()
    assert "num_random_episodes" not in to_builtins(tally.row())
    counts = {"num_lost_episodes": 1, "num_bad_episodes": 1, "num_open": 3}
    stood_in = [["ppo"], ["ppo", "a2c"]]  # returns of such episodes are not among the others
    tally.add(
        "simulation-0",
        SimulationReport(100, [{"a": 1.0}], 1, 2.0, random_episodes=stood_in, **counts),
    )
    tally.add("simulation-1", SimulationReport(10, [], num_bad_episodes=2))
    tally.restart("simulation-0")
    tally.add("simulation-0", SimulationReport(5, [{"a": 3.0}], 0, 0.5, num_lost_episodes=2))
    tally.restart("ppo")
    expected = {
        "env_steps": 115,
        "episodes": 4,
        "num_mismatches": 1,
        "num_lost_episodes": 6,
        "num_bad_episodes": 3,
        "num_random_episodes": {"ppo": 2, "a2c": 1},
        "episode_return_mean": {"a": 2.0},
        "cpu_s": pytest.approx(2.5),
    }
    first, second = to_builtins(tally.next_row()), to_builtins(tally.next_row())
    assert first | expected == first
    assert first["restarted"] == ["simulation-0", "ppo"]
    assert not {"restarted", "resumed_from"} & second.keys()
    again = Tally()
    again.restore(tally.state())
    again.begin()
    again.add("simulation-0", SimulationReport(1, [], 0, 1.0, num_lost_episodes=1))
    first, second = to_builtins(again.next_row()), to_builtins(again.next_row())
    more = {"env_steps": 116, "num_lost_episodes": 7, "cpu_s": pytest.approx(3.5)}
    assert first | expected | more == first
    assert first["resumed_from"] == 115
    assert "resumed_from" not in second
    assert again.num_restarts == tally.num_restarts == {"simulation-0": 1, "ppo": 1}
