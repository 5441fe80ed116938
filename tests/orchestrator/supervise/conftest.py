"""Fixtures for tests that start processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.started import ROOT, environment_of
from tests.processes import MARK, assert_all_end, marked


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Gives a mark that all started processes inherit; fails if any of them is left."""
    mark = f"{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv(MARK, mark)
    yield mark
    try:
        assert_all_end(mark, 20.0)
    finally:
        for process in marked(mark):
            os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def python_path(monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets processes find the classes of tests; gives the value of PYTHONPATH."""
    path = environment_of(ROOT)["PYTHONPATH"] + f":{ROOT}"
    monkeypatch.setenv("PYTHONPATH", path)
    return path
