"""A child of this process ends with it, and a program with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import assert_all_end, marked

from muxrl.orchestrator.supervise.child import Child, Program

PATIENCE_S = 20.0
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
    deaf.kill()  # again it does nothing


def test_a_child_ends_with_a_parent_that_is_killed(mark: str) -> None:
    code = (
        "import sys, time\nfrom muxrl.orchestrator.supervise.child import Child\n"
        f"child = Child([sys.executable, '-c', {ALONE!r}])\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert len(marked(mark)) == 2
        parent.kill()
    assert_all_end(mark, PATIENCE_S)


def test_a_program_that_cannot_be_started_leaves_no_guard(mark: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Program([str(tmp_path / "absent")])
    assert not marked(mark)


def test_a_program_that_ignores_sigterm_is_killed(mark: str) -> None:
    ours, theirs = os.pipe()
    program = Program([sys.executable, "-c", DEAF], theirs)
    os.read(ours, 1)
    program.end(0.0, 0.1)
    assert program.wait(PATIENCE_S) == -signal.SIGKILL
