"""Servers start side by side, and a failure is reported at once, however long others take.

A process is lost only once, even if several notice it, or late; each record is written once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muxrl.orchestrator.config import ExperimentConfig, TimeoutsConfig
from muxrl.orchestrator.errors import Ended, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.life import Life, Supervisor
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.server_process import ServerProcess, Started
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.protocol.run_messages import RunReport
from muxrl.servers import run_service
from muxrl.servers.config import RestartsConfig, ServerConfig, ServerPlan

Answer = Started | Exception | None
"""The address and pid of a server; an error; or None, if it does not start in time."""


class Scripted:
    """Workers whose servers give their scripted answers one after another, or never."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers
        self._starts: dict[str, Future[Any]] = {}

    def start(self, name: str, process: type, *_: Any, **__: Any) -> Any:
        self._starts[name] = Future()
        if len(self._starts) == 2:
            threading.Thread(target=self._answer).start()
        return SimpleNamespace(call=lambda *_: self._starts[name], kill=lambda: None)

    def _answer(self) -> None:
        for name, answer in self._answers.items():
            time.sleep(0.05)
            if isinstance(answer, Exception):
                self._starts[name].set_exception(answer)
            elif answer is not None:
                self._starts[name].set_result(answer)


def servers_of(tmp_path: Path, on_report: Any) -> Servers:
    """Returns the servers "a" and "b" of a run, not started yet."""
    config = ExperimentConfig(
        "two",
        servers={name: ServerConfig("A2C", []) for name in "ab"},
        timeouts=TimeoutsConfig(start_s=0.5, report_s=0.2),
    )
    plans = {name: ServerPlan(name, "A2C", {}, {}, 0) for name in "ab"}
    experiment: Any = SimpleNamespace(config=config, pool_sources={}, servers=plans)
    supervisor = Supervisor(config, RunDirectory.create_at(tmp_path / "run"))
    return Servers(experiment, supervisor, on_report, lambda *_: None)


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return servers_of(tmp_path, lambda *_: None)


def start(servers: Servers, workers: Any) -> None:
    async def begin() -> None:
        servers._supervisor.workers = workers
        await servers._supervisor.unless_lost(servers.start())
        servers.kill()

    asyncio.run(begin())


A, B = Started("127.0.0.1:1", 11), Started("127.0.0.1:2", 22)


def test_addresses_are_in_the_order_of_the_config(servers: Servers) -> None:
    start(servers, Scripted({"b": B, "a": A}))
    found = {server_id: address.address for server_id, address in servers.addresses.items()}
    assert list(found.items()) == [("a", "127.0.0.1:1"), ("b", "127.0.0.1:2")]


def test_a_failure_of_the_second_server_is_reported_while_the_first_still_starts(
    servers: Servers,
) -> None:
    with pytest.raises(RunFailed, match=r"^server 'b' died \(SIGKILL\)"):
        start(servers, Scripted({"b": Ended("SIGKILL")}))


def test_a_server_that_never_answers_is_named(servers: Servers) -> None:
    reason = r"^server 'b' did not answer for 0.5 s \(timeouts.start_s sets how long it may take\);"
    with pytest.raises(RunFailed, match=reason):
        start(servers, Scripted({"a": A, "b": None}))


class Process:
    """A process that answers nothing; after a kill its calls end a little later, as over a pipe."""

    def __init__(self) -> None:
        self.calls: list[Future[Any]] = []

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append(Future())
        return self.calls[-1]

    def kill(self) -> None:
        for call in (one for one in self.calls if not one.done()):
            asyncio.get_running_loop().call_later(0.01, call.set_exception, Ended("SIGKILL"))


class Named(Life[ProcessReport]):
    def _launch(self) -> Process:
        return Process()

    def _receive(self, report: ProcessReport) -> None: ...

    def _again(self) -> str:
        return "at once"


def test_reports_of_a_process_before_its_loss_count(tmp_path: Path) -> None:
    received: list[ProcessReport] = []

    class Heard(Named):
        def _receive(self, report: ProcessReport) -> None:
            received.append(report)

    async def play() -> None:
        quota = Quota(RestartsConfig(max=3), "restarts")
        life = Heard("one", Supervisor(ExperimentConfig(), RunDirectory(tmp_path)), quota)
        life.begin()
        await life.is_up.wait()
        process: Any = life.caller
        asked = asyncio.create_task(life.report(5.0))
        await asyncio.sleep(0.01)
        lost = asyncio.create_task(life.lose(Ended("raised")))
        await asyncio.sleep(0.01)
        process.calls[-1].set_result(ProcessReport())
        await lost
        await asked
        life.end()

    asyncio.run(play())
    assert received == [ProcessReport()]


def test_a_call_that_ends_after_the_restart_does_not_lose_the_next_process(tmp_path: Path) -> None:
    quota = Quota(RestartsConfig(max=3), "restarts")

    async def play() -> None:
        life = Named("one", Supervisor(ExperimentConfig(), RunDirectory(tmp_path)), quota)
        life.begin()
        await life.is_up.wait()
        first = life.caller
        called = life.call("evaluate")
        await life.lose(Silent("did not answer"))
        await life.is_up.wait()
        second = life.caller
        assert second is not first
        try:
            await called
        except Ended as error:
            await life.lose(error, first)
        await asyncio.sleep(0.05)
        assert life.caller is second
        await life.lose(Ended("SIGSEGV"), second)
        await life.is_up.wait()
        assert life.caller is not second
        life.end()

    asyncio.run(play())
    assert quota.num_taken == 2


# --- every training record is written once, whatever becomes of the call that brought it ---------


@dataclass
class Learning:
    """The parts of a `PolicyServer` that its process uses."""

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
        """Returns at once, as nothing is being learned."""

    def status(self) -> None:
        return None

    def latencies(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ServerProcess:
    monkeypatch.setattr(run_service, "asdict", lambda activity: {})
    monkeypatch.setattr("muxrl.servers.server.PolicyServer", Learning)
    plan: Any = SimpleNamespace(algorithm="A2C")
    return ServerProcess(plan)


def iterations(report: RunReport) -> list[int]:
    return [record["iteration"] for record in report.records]


def test_a_process_repeats_a_record_until_it_is_taken_in(
    process: ServerProcess, tmp_path: Path
) -> None:
    server = process._server
    server.learn(1, 2)
    assert iterations(process.report()) == [1, 2]
    server.learn(3)
    assert iterations(process.report(taken=1)) == [2, 3]
    _, at_checkpoint = process.save(tmp_path / "draft", 1.0, taken=2)
    assert iterations(at_checkpoint) == [], "of a checkpoint at iteration 0"
    server.learn(4)
    assert iterations(process.finish_training(1.0, taken=2)) == [3, 4]
    assert iterations(process.report(taken=4)) == []


def test_answers_that_overlap_are_taken_in_once(process: ServerProcess, tmp_path: Path) -> None:
    written: list[int] = []
    servers = servers_of(tmp_path, lambda _, report: written.extend(iterations(report)))
    server, taker = process._server, servers.of["a"]
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


def test_servers_that_do_not_finish_are_waited_for_together(servers: Servers) -> None:
    for server in servers.of.values():
        server.caller = SimpleNamespace(call=answer_only_status, kill=lambda: None)  # type: ignore[assignment]
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
