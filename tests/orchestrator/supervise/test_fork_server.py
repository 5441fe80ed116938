"""Copies of a process that has imported torch: what they inherit, and which user may make them."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muxrl.orchestrator.supervise import fork_server
from muxrl.orchestrator.supervise.worker import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


class Looker:
    """Reports on the process in which it is."""

    def look(self) -> dict[str, Any]:
        import torch

        return {
            "parent": os.getppid(),
            "folder": os.getcwd(),
            "draws": [random.random(), np.random.random(), torch.rand(()).item()],
        }

    def num_threads_of(self, pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/task"))


def looked(tmp_path: Path) -> tuple[Worker, dict[str, Any]]:
    worker = Worker(Looker, (), tmp_path / "log", is_forked=True)
    found = worker.call("look").result(100.0)
    return worker, found


@pytest.mark.usefixtures("python_path")
def test_copies_are_of_one_process_with_one_thread_and_draw_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fork_server.running():
        assert fork_server._process is not None
        parent = fork_server._process.pid
        found = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            worker, said = looked(tmp_path)
            assert said["parent"] == parent
            assert said["folder"] == str(tmp_path / name)
            found += said["draws"]
            assert worker.call("num_threads_of", parent).result(100.0) == 1, (
                "a copy may wait for ever for a lock that another thread held"
            )
            worker.kill()
        assert len(set(found)) == 6, "copies draw the same random numbers"
    assert fork_server._VARIABLE not in os.environ


@pytest.mark.usefixtures("python_path")
def test_workers_start_without_a_fork_server_that_has_died(tmp_path: Path) -> None:
    with fork_server.running():
        assert fork_server._process is not None
        fork_server._process.kill()
        fork_server._process.wait()
        worker, said = looked(tmp_path)
        worker.kill()
    assert said["parent"] == os.getpid()


def test_the_outermost_block_ends_the_fork_server(tmp_path: Path) -> None:
    with fork_server.running():
        process = fork_server._process
        assert process is not None
        with fork_server.running():
            pass
        assert fork_server._process is process
        assert process.poll() is None
    assert fork_server._process is None
    assert process.poll() is not None


def test_a_fork_server_serves_no_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line:
        def settimeout(self, timeout_s: float) -> None: ...

        def getsockopt(self, *_: int) -> bytes:
            return b"".join(n.to_bytes(4, "little") for n in (1, os.getuid() + 1, 0))

    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    fork_server._serve(Line(), {}, [])  # type: ignore[arg-type]
