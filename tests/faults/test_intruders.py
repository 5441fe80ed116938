"""Other programs use a run's directory, its episodes or its ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.faults.runs import (
    Run,
    assert_goes_forward,
    end_well,
    fail,
    lasting,
    rows,
    wait_for_checkpoint,
    wait_until_it_goes_on,
)

from muxrl.client import PolicyClient, RefusedByServer
from muxrl.orchestrator import cli
from muxrl.orchestrator.supervise import fork_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def taken(place: tuple[str, int]) -> socket.socket:
    """Returns a socket that listens there, once the socket before has been closed."""
    deadline = time.monotonic() + 2.0
    while True:
        try:
            return socket.create_server(place)
        except OSError:
            if time.monotonic() > deadline:
                raise


def test_second_launches_and_clients_are_refused_and_the_run_goes_on(
    launch: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fork_server, "begin", lambda: None)
    run = wait_for_checkpoint(launch(lasting()))
    folder = str(run.folder)
    assert cli.main(["launch", str(run.folder.parent / "hurt.yaml"), "--run-dir", folder]) == 2
    assert f"{folder} exists already" in capsys.readouterr().err
    assert cli.main(["launch", "--resume", folder]) == 1
    assert f"a run that is going on (pid {run.popen.pid} on " in capsys.readouterr().err

    addresses = json.loads((run.folder / "servers.json").read_text())
    observations = {"agent_0": np.zeros(8, np.float32)}
    with PolicyClient(addresses["ppo"]) as first, PolicyClient(addresses["ppo"]) as second:
        first.start_episode("mine")
        first.get_action("mine", observations)
        first.log_returns("mine", {"agent_0": 1.0})
        first.get_action("mine", observations)
        with pytest.raises(RefusedByServer, match="mine is already open on server 'ppo'"):
            second.start_episode("mine")
        assert first.get_action("mine", observations).keys() == {"agent_0"}
        first.end_episode("mine", observations)

    before = rows(run, "joint")[-1]["env_steps"]
    run.wait_for("more env steps", lambda: rows(run, "joint")[-1]["env_steps"] > before + 500)
    assert end_well(run)["num_lost_episodes"] == 0
    assert_goes_forward(run)


def test_a_server_whose_port_is_taken_starts_once_it_is_free(launch: Callable[..., Run]) -> None:
    run = wait_for_checkpoint(launch(lasting()))
    address = json.loads((run.folder / "servers.json").read_text())["a2c"]
    place = ("127.0.0.1", int(address.rpartition(":")[2]))

    def num_starts() -> int:
        return sum("a2c" in row.get("restarted", ()) for row in rows(run, "joint"))

    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    with taken(place):
        run.wait_for("a second start, after one that failed", lambda: num_starts() >= 2)
    wait_until_it_goes_on(run, "a2c")
    end_well(run)
    assert_goes_forward(run)
    refusal = f"server 'a2c' cannot listen on {place[0]}:{place[1]}: Address already in use"
    assert f"server 'a2c' failed: {refusal}" in run.output, run.output


@pytest.mark.night  # by day: test_restarts.py, a server that is lost too often
def test_a_server_that_must_not_be_lost_ends_the_run(launch: Callable[..., Run]) -> None:
    experiment = lasting()
    experiment["servers"]["a2c"]["on_server_loss"] = "stop"
    run = wait_for_checkpoint(launch(experiment))
    pid = run.pid_of("a2c")
    os.kill(pid, signal.SIGKILL)
    assert f"server 'a2c' (pid {pid}, A2C) died" in fail(run)
