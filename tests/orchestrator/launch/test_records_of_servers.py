"""Every training record is written once, whatever becomes of the call that brought it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muxrl.orchestrator.config import ExperimentConfig, TimeoutsConfig
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.life import Supervisor
from muxrl.orchestrator.supervise.server_process import ServerProcess
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.protocol.run_messages import RunReport
from muxrl.servers import run_service
from muxrl.servers.config import ServerConfig, ServerPlan


@dataclass
class Scripted:
    """What a process asks of its `PolicyServer`."""

    plan: Any
    learned: list[dict[str, Any]] = field(default_factory=list)
    policies: Any = field(
        default_factory=lambda: SimpleNamespace(
            feed=SimpleNamespace(activity=SimpleNamespace()), save=lambda path, timeout_s: None
        )
    )

    def __post_init__(self) -> None:
        self.policies.drain_records = self.drain_records

    def learn(self, *iterations: int) -> None:
        self.learned += [{"iteration": i} for i in iterations]

    def drain_records(self) -> list[dict[str, Any]]:
        records, self.learned = self.learned, []
        return records

    def finish_training(self, timeout_s: float) -> None:
        """Nothing is under way."""

    def status(self) -> None:
        return None

    def latencies(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ServerProcess:
    monkeypatch.setattr(run_service, "asdict", lambda activity: {})
    monkeypatch.setattr("muxrl.servers.server.PolicyServer", Scripted)
    return ServerProcess(cast("Any", SimpleNamespace(algorithm="A2C")))


def iterations(report: RunReport) -> list[int]:
    return [record["iteration"] for record in report.records]


def test_a_process_reports_a_record_until_it_is_taken_in(
    process: ServerProcess, tmp_path: Path
) -> None:
    server = cast("Scripted", process._server)
    server.learn(1, 2)
    assert iterations(process.report()) == [1, 2]
    server.learn(3)
    assert iterations(process.report(taken=1)) == [2, 3]
    _, at_checkpoint = process.save(tmp_path / "draft", 1.0, taken=2)
    assert iterations(at_checkpoint) == [], "of a checkpoint at iteration 0"
    server.learn(4)
    assert iterations(process.finish_training(1.0, taken=2)) == [3, 4]
    assert iterations(process.report(taken=4)) == []


def servers_of(tmp_path: Path, *names: str, **of_run: Any) -> Servers:
    """The servers of a run that nobody has started."""
    settings = {name: ServerConfig("A2C", []) for name in names}
    config = ExperimentConfig("none", servers=settings, timeouts=TimeoutsConfig(report_s=0.2))
    plans = {name: ServerPlan(name, "A2C", {}, {}, 0) for name in names}
    experiment = cast("Any", SimpleNamespace(config=config, pool_sources={}, servers=plans))
    return Servers(experiment, Supervisor(config, RunDirectory(tmp_path)), **of_run)


def test_answers_that_overlap_are_taken_in_once(process: ServerProcess, tmp_path: Path) -> None:
    written: list[int] = []
    servers = servers_of(
        tmp_path,
        "a",
        on_report=lambda server_id, report: written.extend(iterations(report)),
        on_restart=lambda server_id, manifest: None,
    )
    server, taker = cast("Scripted", process._server), servers.of["a"]
    server.learn(1, 2)
    early = process.report()
    server.learn(3)
    late = process.report()
    for report in (late, early, process.report()):
        taker._receive(report)
    assert written == [1, 2, 3]
    server.learn(4)
    taker._receive(process.report(taker._num_taken))
    assert written == [1, 2, 3, 4]


def test_servers_that_do_not_finish_are_waited_for_together(tmp_path: Path) -> None:
    nobody: Any = None
    servers = servers_of(tmp_path, *"abc", on_report=nobody, on_restart=nobody)
    for server in servers.of.values():
        server.caller = cast("Any", SimpleNamespace(call=answer_only_status, kill=lambda: None))
        server.is_up.set()
    began_at = time.monotonic()
    with pytest.raises(RunFailed, match=r"server 'a' did not answer for 0.4 s .timeouts.update_s"):
        asyncio.run(servers.finish_training(0.2))
    assert time.monotonic() - began_at < 3.0, "one after another"


def answer_only_status(method: str, *arguments: Any) -> Future[Any]:
    answer = Future[Any]()
    if method == "status":
        answer.set_result(None)
    return answer
