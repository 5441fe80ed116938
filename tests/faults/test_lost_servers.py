"""The process of a server is killed or stopped while an external client plays on it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from tests.client.scripted_servers import CountingSimulation
from tests.faults.started import Started

from muxrl.client import MultiplexingClient, ServerLost
from muxrl.client.env_loop import EnvLoop, EpisodeResult

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

LASTS_S = 60.0
"""Patience that lets a server start on a busy machine."""
SPACES = {
    "observation_space": {"type": "box", "shape": [1]},
    "action_space": {"type": "discrete", "n": 9},
}


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return "{}:{}".format(*free.getsockname())


@pytest.fixture
def serve(tmp_path: Path, start: Callable[..., Started], address: str) -> Callable[[], Started]:
    """Gives a function that starts ``muxrl serve`` at `address`."""
    port = int(address.rpartition(":")[2])
    server: dict[str, Any] = {"algorithm": "RANDOM", "agents": ["a", "b"], "port": port}
    simulation = {"env": "external", "agents": {"a": SPACES, "b": SPACES}}
    path = tmp_path / "external.yaml"
    path.write_text(yaml.safe_dump({"simulation": simulation, "servers": {"acting": server}}))
    return lambda: start("serve", str(path), "--server", "acting")


def is_stopped(pid: int) -> bool:
    """Returns whether all threads of a process are stopped: the signal reaches them one by one."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def test_a_server_is_lost_while_it_is_stopped_and_when_it_is_killed_until_it_is_started_again(
    serve: Callable[[], Started], address: str
) -> None:
    server = serve()
    MultiplexingClient([address], patience_s=LASTS_S).close()
    with MultiplexingClient([address], patience_s=2.0) as client:
        episode_id = client.start_episode()
        client.get_action(episode_id, {"a": [0.0]})
        os.kill(server.popen.pid, signal.SIGSTOP)
        try:
            server.wait_for("stop", lambda: is_stopped(server.popen.pid))
            began = time.monotonic()
            with pytest.raises(ServerLost, match=f"server 'acting' .*{address}.*it hangs"):
                client.get_action(episode_id, {"a": [1.0]})
            assert time.monotonic() - began < 10.0
        finally:
            os.kill(server.popen.pid, signal.SIGCONT)
        episode_id = client.start_episode()
        assert client.get_action(episode_id, {"b": [0.0]}).keys() == {"b"}

    results: list[EpisodeResult] = []
    with MultiplexingClient([address], patience_s=LASTS_S) as client:
        loop = EnvLoop(
            [CountingSimulation(num_steps=10)], client, seeds=iter(range(20)), on_lost="restart"
        )

        def kill_once() -> bool:
            if loop.num_env_steps == 55 and not loop.num_lost_episodes:
                os.kill(server.popen.pid, signal.SIGKILL)
                server.wait()
                serve()
            return False

        loop.run(results.append, kill_once)
        assert [result.seed for result in results] == list(range(20)), "each once, in order"
        assert loop.num_lost_episodes == 1
        assert client.num_mismatches == 0
    status = requests.get(f"http://{address}/v1/status").json()
    # The episode that was lost in its fifth step began again.
    assert (status["num_env_steps"], status["num_episodes"]) == (150, 15)
    assert "num_open_episodes" not in status
