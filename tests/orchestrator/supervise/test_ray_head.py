"""Ray's GCS and raylet, as far as a run looks at them: here sockets that listen, or do not."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise import ray_head
from muxrl.orchestrator.supervise.ray_head import RayHead

NO_RAYLET = ""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed, so that no test waits."""
    passed = [0.0]
    started = time.monotonic()
    monkeypatch.setattr(ray_head.time, "monotonic", lambda: started + passed[0])
    return passed


def test_a_gcs_that_takes_connections_is_well_and_one_that_does_not_is_lost_in_ten_seconds(
    clock: list[float],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        head = RayHead(address, NO_RAYLET)
        for _ in range(30):
            clock[0] += 1.0
            head.check()
    for _ in range(4):
        clock[0] += 2.0
        head.check()
    clock[0] += 2.5
    with pytest.raises(RunFailed, match=f"Ray's GCS at {address} is lost .Connection refused"):
        head.check()


def test_a_gcs_that_comes_back_in_time_is_well(clock: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    head = RayHead(f"127.0.0.1:{port}", NO_RAYLET)
    for _ in range(3):
        clock[0] += 2.5
        head.check()
    with socket.create_server(("127.0.0.1", port)):
        clock[0] += 2.5
        head.check()
    clock[0] += 9.0
    head.check()


def test_a_raylet_is_lost_once_nobody_listens_at_its_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "raylet")
    RayHead("127.0.0.1:1", NO_RAYLET).check_raylet()
    head = RayHead("127.0.0.1:1", path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        head.check_raylet()
    with pytest.raises(RunFailed, match="Ray's raylet on this machine is lost"):
        head.check_raylet()
    Path(path).unlink()
    with pytest.raises(RunFailed, match="muxrl launch --resume goes on with the run"):
        head.check_raylet()
