"""Nothing is left of a child process, or of a command that plays, once it or the run has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compliance.real_servers import wait_until
from tests.processes import assert_all_end, marked

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise.child import Child, Program
from muxrl.orchestrator.supervise.command_process import CommandProcess

PATIENCE_S = 20.0
Make = Callable[[str], CommandProcess]
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
COMMAND = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}])
open(sys.argv[1], "w").close()
{then}
"""


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Gives a function for the process of a command that starts another one, then runs `then`."""

    def make(then: str) -> CommandProcess:
        code = COMMAND.format(child=CHILD, then=then)
        command = [sys.executable, "-c", code, str(tmp_path / "has_started")]
        return CommandProcess(command)

    return make


def test_processes_of_a_command_that_failed_are_ended(make: Make, mark: str) -> None:
    with pytest.raises(RunFailed, match="ended with exit code 3 before the run was over"):
        make("sys.exit(3)").run()
    assert_all_end(mark, PATIENCE_S)


@pytest.mark.parametrize("then", ["sys.exit(0)", "time.sleep(600)"])
def test_processes_of_a_command_are_ended_with_the_run(
    make: Make, mark: str, tmp_path: Path, then: str
) -> None:
    process = make(then)

    def run() -> None:
        with contextlib.suppress(RunFailed):  # the command may end before it is stopped
            process.run()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until((tmp_path / "has_started").exists)
    process.stop(0.1)
    assert_all_end(mark, PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("when", ["soon", "later"])
def test_processes_of_a_command_are_ended_if_its_own_process_is_killed(
    mark: str, tmp_path: Path, when: str
) -> None:
    has_started = tmp_path / "has_started"
    command = [sys.executable, "-c", COMMAND.format(child=CHILD, then="time.sleep(600)")]
    code = (
        "from muxrl.orchestrator.supervise.command_process import CommandProcess\n"
        f"CommandProcess({[*command, str(has_started)]!r}).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until(has_started.exists if when == "later" else lambda: len(marked(mark)) > 2)
    process.kill()
    process.wait()
    assert_all_end(mark, PATIENCE_S)


def test_a_command_that_is_stopped_before_it_began_does_not_begin(
    make: Make, mark: str, tmp_path: Path
) -> None:
    process = make("time.sleep(600)")
    process.stop(0.0)
    process.run()
    assert not (tmp_path / "has_started").exists()
    assert not marked(mark)


def test_a_command_that_cannot_be_started_is_named(mark: str, tmp_path: Path) -> None:
    named = r"simulation\.command no-such-program 5 cannot be started: No such file or directory"
    with pytest.raises(RunFailed, match=named):
        CommandProcess(["no-such-program", "5"]).run()
    assert not marked(mark)


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
ALONE = """
import os, time
from muxrl.orchestrator.supervise.child import when_alone
when_alone(lambda: os._exit(3))
time.sleep(600)
"""


def test_a_child_ends_by_itself_at_the_end_of_its_input_or_is_killed(mark: str) -> None:
    obedient, deaf = (Child([sys.executable, "-c", code]) for code in (ALONE, DEAF))
    assert {process.pid for process in marked(mark)} == {obedient.pid, deaf.pid}
    obedient.end(PATIENCE_S)
    deaf.end(0.1)
    assert (obedient.returncode, deaf.returncode) == (3, -signal.SIGKILL)
    deaf.kill()  # a second kill does nothing


def test_a_program_that_ignores_sigterm_is_killed(mark: str) -> None:
    ours, theirs = os.pipe()
    program = Program([sys.executable, "-c", DEAF], theirs)
    os.read(ours, 1)
    program.end(0.0, 0.1)
    assert program.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_child_whose_end_another_thread_has_just_seen_may_be_killed() -> None:
    child = Child([sys.executable, "-c", ""])
    with child, child._waitpid_lock:  # type: ignore[attr-defined]  # as `wait` in that thread
        os.waitpid(child.pid, 0)
        child.kill()
