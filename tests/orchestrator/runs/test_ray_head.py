"""Ray's GCS, as far as a run looks at it: here a socket that listens, or does not."""

from __future__ import annotations

import socket
import time

import pytest

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.runs import ray_head
from muxrl.orchestrator.runs.ray_head import RayHead


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
        head = RayHead(address)
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
    head = RayHead(f"127.0.0.1:{port}")
    for _ in range(3):
        clock[0] += 2.5
        head.check()
    with socket.create_server(("127.0.0.1", port)):
        clock[0] += 2.5
        head.check()
    clock[0] += 9.0
    head.check()
