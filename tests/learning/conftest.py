"""One Ray for all of these tests: a start of its own takes longer than some of them learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muxrl.orchestrator.runs.ray_session import ray_session


@pytest.fixture(scope="session", autouse=True)
def _running_ray() -> Iterator[None]:
    with ray_session(num_cpus=2):
        yield
