"""A process with an object: the order of calls, threads, exceptions, and how the process ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.compliance.real_servers import wait_until
from tests.faults.started import ROOT, environment_of

from muxrl.orchestrator.errors import Ended, Raised, RunFailed
from muxrl.orchestrator.supervise import fork_server
from muxrl.orchestrator.supervise.command_process import CommandProcess
from muxrl.orchestrator.supervise.evaluation_process import EvaluationProcess
from muxrl.orchestrator.supervise.gateway_process import GatewayProcess
from muxrl.orchestrator.supervise.own_server import OwnServer
from muxrl.orchestrator.supervise.server_process import ServerProcess
from muxrl.orchestrator.supervise.simulation_process import SimulationProcess
from muxrl.orchestrator.supervise.worker import Worker
from muxrl.orchestrator.supervise.working import Rest, in_main_thread, in_own_thread

WAIT_S = 100.0


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")  # so it cannot be made again from its one argument


class Talker:
    """The object of a process."""

    def __init__(self, problem: str = "") -> None:
        if problem:
            raise RunFailed(problem)
        self.said: list[str] = []
        self.may_go_on = threading.Event()
        self.made_in = threading.current_thread()

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        self.said.append(text)

    def repeat(self) -> list[str]:
        return self.said

    def hold(self) -> Rest:
        self.said.append("held")
        return Rest(lambda: self.may_go_on.wait(WAIT_S))

    @in_own_thread
    def wait(self) -> bool:
        return self.may_go_on.wait(WAIT_S)

    @in_main_thread
    def is_main(self) -> bool:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return threading.current_thread() is threading.main_thread() is self.made_in

    def go_on(self) -> None:
        self.may_go_on.set()

    def fail(self, how: str) -> None:
        if how == "exit":
            sys.exit("enough")
        raise Unsendable(1, 2) if how == "unsendable" else RunFailed("no luck", "here")

    def end(self, code: int) -> None:
        os._exit(code)

    def start_child(self) -> int:
        return subprocess.Popen(["sleep", "100"]).pid

    def environment(self) -> tuple[str, str]:
        return os.environ["OMP_NUM_THREADS"], os.environ["LIKED"]


Make = Callable[..., Worker]


@pytest.fixture(scope="module")
def forking() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{environment_of(ROOT)['PYTHONPATH']}:{ROOT}")
        with fork_server.running():
            yield


@pytest.fixture(params=[False, True], ids=["spawned", "forked"])
def make(request: pytest.FixtureRequest, tmp_path: Path, python_path: str) -> Iterator[Make]:
    made: list[Worker] = []
    if request.param:
        request.getfixturevalue("forking")

    def make(*arguments: Any) -> Worker:
        env = {"PYTHONPATH": python_path, "LIKED": "cats"}
        worker = Worker(
            Talker, arguments, tmp_path / "logs" / "talker.log", is_forked=request.param, env=env
        )
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.kill()


def got(future: Future[Any]) -> Any:
    return future.exception(WAIT_S) or future.result()


def test_calls_begin_in_order_and_calls_that_wait_hold_up_no_others(make: Make) -> None:
    worker = make()
    held, waits = worker.call("hold"), worker.call("wait")
    for text in "abc":
        worker.call("say", text)
    assert got(worker.call("repeat")) == ["held", "a", "b", "c"]
    assert not held.done()
    assert not waits.done()
    worker.call("go_on")
    assert (got(held), got(waits)) == (True, True)
    assert got(worker.call("is_main")) is True
    assert got(worker.call("environment")) == ("1", "cats")


def test_exceptions_come_back_and_the_process_goes_on(make: Make, tmp_path: Path) -> None:
    worker = make()
    error = got(worker.call("fail", "itself"))
    assert (type(error), str(error), error.place) == (RunFailed, "no luck", "here")
    assert str(got(worker.call("fail", "unsendable"))) == "Unsendable: 1 and 2"
    assert str(got(worker.call("fail", "exit"))) == "SystemExit: enough"
    assert isinstance(got(worker.call("fail", "exit")), Raised)
    assert isinstance(got(worker.call("nothing")), AttributeError)
    worker.call("say", "printed")
    assert got(worker.call("repeat")) == ["printed"]
    log = (tmp_path / "logs" / "talker.log").read_text()
    assert "printed\n" in log
    assert "Traceback" in log


def test_an_object_that_could_not_be_made_fails_each_call_with_the_reason(make: Make) -> None:
    worker = make("bad luck")
    for _ in range(2):
        assert str(got(worker.call("repeat"))) == "bad luck"


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda worker: os.kill(worker.pid, signal.SIGKILL), "SIGKILL; perhaps memory ran out"),
        (lambda worker: worker.call("end", 3), "exit code 3"),
    ],
)
def test_a_process_that_ends_reports_how_and_leaves_nothing(
    make: Make, end: Callable[[Worker], Any], how: str
) -> None:
    worker = make()
    child, waits = got(worker.call("start_child")), worker.call("wait")
    end(worker)
    for error in (got(waits), got(worker.call("repeat"))):
        assert isinstance(error, Ended)
        assert str(error) == how
    wait_until(lambda: not Path(f"/proc/{worker.pid}").exists())
    wait_until(lambda: is_gone(child))


def test_a_process_that_is_stopped_by_a_signal_can_be_killed(make: Make) -> None:
    worker = make()
    assert got(worker.call("repeat")) == []
    os.kill(worker.pid, signal.SIGSTOP)
    worker.kill()
    assert isinstance(got(worker.call("repeat")), Ended)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z"
    except FileNotFoundError:
        return True


def test_every_method_that_is_called_by_name_exists_on_a_process() -> None:
    """A failed call that nobody waits for would only be in a log."""
    processes = (
        CommandProcess, EvaluationProcess, GatewayProcess, OwnServer, ServerProcess,
        SimulationProcess,
    )  # fmt: skip
    called: set[str] = set()
    for room in ("supervise", "launch"):
        for path in (ROOT / "orchestrator" / room).glob("*.py"):
            called.update(re.findall(r'\.(?:call|send)\(\s*"(\w+)"', path.read_text()))
    assert len(called) > 15
    assert not {name for name in called if not any(hasattr(one, name) for one in processes)}
