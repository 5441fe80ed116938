"""Servers start side by side, and one that fails is told at once, however long others take; a
process is lost once, whoever hears of it, and however late."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, TimeoutsConfig, prepare
from muxrl.orchestrator.errors import Ended, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.life import Life, Supervisor
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.server_process import Started
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.servers.config import RestartsConfig, ServerConfig

Answer = Started | Exception | None
"""Address and process; None: there is none in time."""


class Scripted:
    """A place where servers answer what they are told to, one after another, or never."""

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


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    """The servers "a" and "b" of a run."""
    config = ExperimentConfig(
        "two",
        simulation=SimulationConfig(
            "muxrl.experiments.simulations.zero_cost:ZeroCost", {"num_agents": 2}
        ),
        servers={
            "a": ServerConfig("RANDOM", ["agent_0"]),
            "b": ServerConfig("RANDOM", ["agent_1"]),
        },
        timeouts=TimeoutsConfig(start_s=0.5),
    )
    supervisor = Supervisor(config, RunDirectory.create_at(tmp_path / "run"))
    experiment = prepare(config, needs_stop=False)
    return Servers(experiment, supervisor, lambda *_: None, lambda *_: None)


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


def test_the_second_fails_while_the_first_still_starts(servers: Servers) -> None:
    with pytest.raises(RunFailed, match=r"^server 'b' died \(SIGKILL\)"):
        start(servers, Scripted({"b": Ended("SIGKILL")}))


def test_one_that_never_answers_is_named(servers: Servers) -> None:
    reason = r"^server 'b' did not answer for 0.5 s \(timeouts.start_s sets how long it may take\);"
    with pytest.raises(RunFailed, match=reason):
        start(servers, Scripted({"a": A, "b": None}))


class Process:
    """Answers nothing, and after it was killed its calls end a little later, as over a pipe."""

    def __init__(self) -> None:
        self.calls: list[Future[Any]] = []

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append(Future())
        return self.calls[-1]

    def kill(self) -> None:
        for call in self.calls:
            asyncio.get_running_loop().call_later(0.01, call.set_exception, Ended("SIGKILL"))


class Named(Life[ProcessReport]):
    def _launch(self) -> Process:
        return Process()

    def _receive(self, report: ProcessReport) -> None: ...

    def _again(self) -> str:
        return "at once"


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
