"""Simulation processes are held while a checkpoint is written, and one dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.config.schema import RestartsConfig
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.event_loop import again_and_again
from muxrl.orchestrator.supervise.life import Supervisor
from muxrl.orchestrator.supervise.local import LocalWorkers
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.orchestrator.supervise.simulations import Simulations
from muxrl.orchestrator.supervise.working import Rest, in_main_thread, in_own_thread

pytestmark = pytest.mark.usefixtures("python_path")
PATIENCE_S = 20.0
ROOM = "muxrl.orchestrator.supervise.simulations"


class Held:
    """A process that does only what it must."""

    def __init__(self) -> None:
        self._has_to_stop = threading.Event()

    def connect(self, servers: Any) -> None: ...

    def release(self) -> None: ...

    def stop(self) -> None:
        self._has_to_stop.set()


class Player(Held):
    """Plays one step; simulation-0 dies when it is first held, and simulation-1 is slow."""

    def __init__(self, config: Any, number: int, *arguments: Any) -> None:
        super().__init__()
        self._number = number
        self._folder = arguments[-1].parent.parent
        self._num_env_steps = 0

    @in_main_thread
    def run(self) -> None:
        self._num_env_steps = 1
        self._has_to_stop.wait()

    def hold(self, grace_s: float, timeout_s: float) -> Rest:
        if self._number == 0:
            os._exit(1)
        return Rest(self._wait_until_it_may_pause)

    def _wait_until_it_may_pause(self) -> bool:
        deadline = time.monotonic() + 60.0
        while not (self._folder / "may_pause").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return True

    def report(self) -> SimulationReport:
        return SimulationReport(num_env_steps=self._num_env_steps)


class Waiting(Held):
    """A gateway without clients; the first one dies when it is held."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    def start(self, parameters: Any, port: int, num_restarts: int, is_limited: bool) -> str:
        self._num_restarts = num_restarts
        return "127.0.0.1:9900"

    @in_own_thread
    def run(self) -> None:
        self._has_to_stop.wait()

    def hold(self, grace_s: float, timeout_s: float) -> bool:
        if self._num_restarts == 0:
            os._exit(1)
        return True

    def report(self) -> SimulationReport:
        return SimulationReport()

    def end(self, story: str, has_ended_well: bool) -> None: ...


def test_a_simulation_that_is_started_again_meanwhile_begins_when_all_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROOM}.SimulationProcess", Player)
    once = RestartsConfig(max=1)
    simulation = SimulationConfig("any:Env", num_processes=2, num_cpus=0.1, restarts=once)
    steps: dict[str, int] = {}
    restarted: list[str] = []

    def note(name: str, report: SimulationReport) -> None:
        steps[name] = report.num_env_steps
        if restarted and steps.get("simulation-0") == 0:  # the new process has started
            (tmp_path / "may_pause").touch()

    async def play() -> None:
        simulations = made(simulation, tmp_path, note, restarted)
        looking = asyncio.create_task(again_and_again(lambda: simulations.report(0.1), 0.05))
        try:
            await simulations.start({})
            simulations.play()
            for name in ("simulation-0", "simulation-1"):
                await until(lambda name=name: steps.get(name) == 1)  # type: ignore[misc]
            assert await simulations.hold(0.0, PATIENCE_S) == []
            assert restarted == ["simulation-0"]
            await simulations.report(1.0)
            assert steps["simulation-0"] == 0
            simulations.release()
            await until(lambda: steps.get("simulation-0") == 1)
        finally:
            looking.cancel()
            await simulations.stop()

    asyncio.run(play())


def test_a_gateway_restarted_while_all_were_held_ends_with_training_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROOM}.GatewayProcess", Waiting)
    simulation = SimulationConfig("external", restarts=RestartsConfig(max=1))
    restarted: list[str] = []

    async def play() -> None:
        simulations = made(simulation, tmp_path, lambda name, report: None, restarted)
        gateway = simulations.gateway
        assert gateway is not None
        try:
            await simulations.start({})
            first = gateway.caller
            simulations.play()
            await simulations.hold(0.0, PATIENCE_S)
            looking = asyncio.create_task(again_and_again(lambda: simulations.report(0.1), 0.05))
            await until(lambda: gateway.caller is not first and gateway.is_up.is_set())
            await simulations.stop()
            await asyncio.sleep(1.0)
            looking.cancel()
            assert restarted == ["gateway"]
        finally:
            await simulations.end("it is over", has_ended_well=True)

    asyncio.run(play())


@pytest.mark.parametrize("env", ["any:Env", "external"])
def test_simulations_pause_at_each_snapshot_without_any_other_reason(
    tmp_path: Path, env: str
) -> None:
    simulations = made(SimulationConfig(env), tmp_path, lambda name, report: None, [])
    assert not simulations.is_limited
    config = ExperimentConfig("held", simulation=SimulationConfig(env))
    config.checkpoint.keep_every_env_steps = 100
    supervisor = Supervisor(config, RunDirectory(tmp_path))
    simulations = Simulations(supervisor, lambda name, report: None, no_server_has_died)
    assert simulations.is_limited


def made(
    simulation: SimulationConfig,
    path: Path,
    on_report: Callable[[str, SimulationReport], None],
    restarted: list[str],
) -> Simulations:
    config = ExperimentConfig("held", simulation=simulation)
    folder = RunDirectory(path)
    folder.logs.mkdir()
    supervisor = Supervisor(config, folder)
    supervisor.workers = LocalWorkers(config)
    supervisor.on_restart = lambda name, prefix: restarted.append(name)
    return Simulations(supervisor, on_report, no_server_has_died)


async def no_server_has_died() -> None:
    """Waits for no server: there is none."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)
