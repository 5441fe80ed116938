"""Fixtures for tests in several folders."""

from __future__ import annotations

import pytest
from tests.orchestrator.commanded import Muxrl


@pytest.fixture
def muxrl(capfd: pytest.CaptureFixture[str]) -> Muxrl:
    return Muxrl(capfd)
