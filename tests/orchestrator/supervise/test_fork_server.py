"""Copies of a process that has imported RLlib: whose they are, what they inherit, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import psutil  # isort: skip  # Ray brings it along, once it is imported

from muxrl.orchestrator.supervise import fork_server as fork_server_module
from muxrl.orchestrator.supervise.actors import start_actor
from muxrl.orchestrator.supervise.fork_server import ForkServer, forked_worker
from muxrl.orchestrator.supervise.ray_session import worker_environment

SCRIPT = """
import os, random, sys
import numpy as np
import ray
print(os.getppid(), "torch" in sys.modules, os.environ["LIKED"], os.getcwd(), *sys.argv[1:],
      random.random(), np.random.random(), ray.ObjectID.from_random(), sep="\\n")
print("an error's place", file=sys.stderr)
sys.exit(3)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUXRL_FORK_SERVER", "restored afterwards")
        server = ForkServer(tmp_path_factory.mktemp("ray"), worker_environment())
        yield server
        server.stop()
        assert "MUXRL_FORK_SERVER" not in os.environ


def client(script: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a worker as Ray does: by a shell."""
    command = forked_worker()["py_executable"]
    return subprocess.Popen(
        ["bash", "-c", f"exec {command} {script} {' '.join(arguments)}"],
        cwd=script.parent,
        env={**os.environ, **worker_environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(SCRIPT)
    return path


def test_torch_is_imported_before_anybody_asks_and_ray_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUXRL_FORK_SERVER", "restored afterwards")
    server = ForkServer(tmp_path, worker_environment())
    maps = Path(f"/proc/{server.pid}/maps")
    deadline = time.monotonic() + 100
    try:
        while "libtorch_python" not in maps.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "libtorch_python" in maps.read_text()
        assert "_raylet" not in maps.read_text()
    finally:
        server.stop()


def test_a_copy_is_the_worker_that_its_client_was_started_as(
    fork_server: ForkServer, script: Path
) -> None:
    outputs = []
    for liked in ("cats", "dogs"):
        worker = client(script, "--with", "arguments", LIKED=liked)
        output, errors = worker.communicate(timeout=100)
        parent, has_torch, *rest, drawn, drawn_by_numpy, drawn_by_ray = output.split("\n")[:-1]
        assert int(parent) == fork_server.pid
        assert has_torch == "True"
        assert rest == [liked, str(script.parent), "--with", "arguments"]
        assert errors == "an error's place\n"
        outputs += [drawn, drawn_by_numpy, drawn_by_ray]
    assert len(set(outputs)) == 6, "copies draw the same random numbers"
    threads = psutil.Process(fork_server.pid).num_threads()
    assert threads == 1, "a copy may wait for ever for a lock that another thread held"


def test_a_client_of_another_ray_becomes_the_worker_itself(
    fork_server: ForkServer, script: Path
) -> None:
    first = client(script, LIKED="cats")
    first.communicate(timeout=100)
    other = client(script, LIKED="cats", RAY_JOB_ID="02000000")
    output, _ = other.communicate(timeout=100)
    assert output.split("\n")[:2] == [str(os.getpid()), "False"]
    assert other.returncode == 3


def test_a_client_whose_server_is_gone_becomes_the_worker_itself(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUXRL_FORK_SERVER", str(tmp_path / "nobody"))
    worker = client(script, LIKED="cats")
    output, _ = worker.communicate(timeout=100)
    assert output.split("\n")[:3] == [str(os.getpid()), "False", "cats"]
    assert worker.returncode == 3


def test_a_client_ends_with_its_worker_which_leaves_no_zombie(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    path = tmp_path / "sleeper.py"
    path.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    sleeper = client(path)
    assert sleeper.stdout is not None
    pid = int(sleeper.stdout.readline())
    assert [p.pid for p in fork_server.workers()] == [pid]
    assert os.getpgid(pid) == pid, "Ray kills the process group of a worker that died"
    os.kill(pid, signal.SIGKILL)
    sleeper.communicate(timeout=30)
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fork_server.workers() == []


@pytest.mark.parametrize("end", ["killed", "without Ray"])
def test_what_was_begun_early_is_the_next_one_and_ends_with_its_maker(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    source = """
import os, pathlib, sys
from muxrl.orchestrator.supervise import fork_server
fork_server.begin_early({})
begun = fork_server._early.pid
print(begun, flush=True)
if sys.argv[2] == "killed":
    server = fork_server.ForkServer(pathlib.Path(sys.argv[1]), {})
    assert server.pid == begun
    print(os.environ["MUXRL_FORK_SERVER"], flush=True)
sys.stdin.read()
"""
    maker = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path), end],
        env={**os.environ, **worker_environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None
    pid = int(maker.stdout.readline())
    if end == "killed":
        monkeypatch.setenv("MUXRL_FORK_SERVER", maker.stdout.readline().strip())
        output, _ = client(script, LIKED="cats").communicate(timeout=100)
        assert output.split("\n")[:3] == [str(pid), "True", "cats"]
        maker.kill()
    maker.communicate()  # or its input ends, and so does it
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


def test_one_that_was_begun_early_and_has_ended_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUXRL_FORK_SERVER", "restored afterwards")
    fork_server_module.begin_early(worker_environment())
    early = fork_server_module._early
    assert early is not None
    os.kill(early.pid, signal.SIGKILL)
    early._child.wait()
    server = ForkServer(tmp_path, worker_environment())
    try:
        assert server.pid != early.pid
        assert psutil.pid_exists(server.pid)
    finally:
        server.stop()


@pytest.mark.usefixtures("running_ray")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_forked", [True, False])
def test_ray_s_workers_are_forked_if_they_may_be(is_forked: bool) -> None:
    class Asked:  # in here, so that it is pickled whole: workers cannot import the tests
        def tell(self) -> dict[str, Any]:
            return {
                "forked": "fork_server" in " ".join(psutil.Process(os.getppid()).cmdline()),
                "threads": os.environ["OMP_NUM_THREADS"],
            }

    actor = start_actor(Asked, scheduling=None, is_forked=is_forked, num_cpus=0)
    told = ray.get(actor.tell.remote())
    ray.kill(actor)
    assert told == {"forked": is_forked, "threads": "1"}
