"""One Ray for all of these tests: a start of its own takes longer than some of them learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muxrl.orchestrator.runs.local_ray import local_ray


@pytest.fixture(scope="session", autouse=True)
def _running_ray() -> Iterator[None]:
    with local_ray(num_cpus=2):
        yield
