"""The live page shows a run through the loss of a server; `muxrl stop` ends both."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.faults.runs import (
    Run,
    assert_readable,
    config,
    lasting,
    num_restarts,
    wait_for_checkpoint,
)
from tests.faults.started import PATIENCE_S
from tests.orchestrator.commanded import Muxrl

from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def muxrl(capfd: pytest.CaptureFixture[str]) -> Muxrl:
    return Muxrl(capfd)


def events(address: str) -> Iterator[dict[str, Any]]:
    """Yields each state that the page is sent, until the stream ends."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_S)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    connection.close()


def lost_s(state: dict[str, Any], server_id: str) -> float:
    (server,) = (s for s in state["servers"] if s["id"] == server_id)
    at = 2 + state["states"].index("lost")
    return sum(stretch[at] for stretch in server["strip"])


def wait(news: Iterator[dict[str, Any]], what: str, is_so: Callable[[Any], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    for state in news:
        if is_so(state):
            return state
        assert time.monotonic() < deadline, f"no {what}: {state}"
    raise AssertionError(f"the news ended before {what}")


def test_the_page_follows_a_run_until_it_is_stopped(
    launch_alone: Callable[..., Run], muxrl: Muxrl
) -> None:
    run = launch_alone(lasting(watch=True))
    assert run.popen.stdout is not None
    lines = iter(run.popen.stdout.readline, "")
    address = next(line for line in lines if line.startswith("watch it: ")).split()[-1]
    news = events(address)
    wait_for_checkpoint(run)
    begun = wait(news, "steps", lambda state: (state.get("env_steps") or 0) > 0)
    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    lost = wait(news, "lost server", lambda state: lost_s(state, "a2c") > 0)
    assert lost["env_steps"] > begun["env_steps"]
    assert lost_s(lost, "ppo") == 0
    again = wait(news, "restart", lambda state: bool(state["marks"]))
    assert again["marks"][0]["what"] == "a2c started again"
    went_on = wait(news, "steps", lambda state: state["env_steps"] > again["env_steps"] + 500)
    assert {s["id"]: s["num_restarts"] for s in went_on["servers"]} == {"a2c": 1, "ppo": 0}
    for server in went_on["servers"]:
        _, p50, p99 = server["latency"][-1]
        assert 0.0 < p50 <= p99 < 60.0
        address = json.loads((run.folder / "servers.json").read_text())[server["id"]]
        assert num_restarts(address) == server["num_restarts"]
    (listed,) = json.loads(muxrl("runs", run.folder.parent, "--json").out)
    assert (listed["path"], listed["state"]) == (str(run.folder), "running")
    stopped = muxrl("stop", run.folder)
    assert run.wait(PATIENCE_S) == 130, run.output
    last = list(news)[-1]
    assert last["status"]["state"] == "interrupted", "the page is told how the run ended"
    assert last["status"]["ended_at"]
    run.assert_nothing_is_left()
    assert_readable(run)
    _, manifest, _ = find_checkpoint(RunDirectory(run.folder))
    assert stopped.out.splitlines()[-1] == (
        f"run '{run.folder}' has ended: interrupted, at {manifest.env_steps:,} env steps; continue "
        f"with: muxrl launch --resume {run.folder}"
    )
    (listed,) = json.loads(muxrl("runs", run.folder.parent, "--json").out)
    assert listed["state"] == "interrupted"
    assert listed["resumable_at"] == manifest.env_steps
    assert "is over: interrupted" in muxrl("stop", run.folder, code=2).err


def test_a_run_is_stopped_while_its_processes_start(
    launch: Callable[..., Run], muxrl: Muxrl
) -> None:
    run = launch(config())
    run.wait_for("a server's log", lambda: (run.folder / "logs" / "ppo.log").exists())
    muxrl("stop", run.folder)
    assert run.wait() == 130, run.output
    assert json.loads((run.folder / "status.json").read_text())["state"] == "interrupted"
    run.assert_nothing_is_left()
