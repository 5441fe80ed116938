"""Whether a process has ended; tests/orchestrator/manage has which processes may be told to end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from muxrl.orchestrator.storage import process
from muxrl.orchestrator.storage.process import Process, start_of


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_a_process_whose_parent_has_not_waited_for_it_has_ended(
    child: subprocess.Popen[bytes],
) -> None:
    begun = Process(process.platform.node(), child.pid, start_of(child.pid), False)
    assert not begun.has_ended
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(child.pid, 0)  # the process's id is still taken
    assert begun.has_ended
    child.wait()
    assert begun.has_ended


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps here")
def test_without_proc_the_end_of_a_process_is_found_by_ps(child: subprocess.Popen[bytes]) -> None:
    assert process._start_by_ps(child.pid)
    assert process._start_by_ps(child.pid) == process._start_by_ps(child.pid)
    child.kill()
    child.wait()
    assert process._start_by_ps(child.pid) is None
