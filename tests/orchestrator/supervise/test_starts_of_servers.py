"""Servers start side by side, and one that fails is told at once, however long others take."""

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
from muxrl.orchestrator.errors import Ended, RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.life import Supervisor
from muxrl.orchestrator.supervise.server_process import Started
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.servers.config import ServerConfig

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
