"""A process is lost once, whoever hears of it, and however late."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.errors import Ended, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.life import Life, Supervisor
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.servers.config import RestartsConfig


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
