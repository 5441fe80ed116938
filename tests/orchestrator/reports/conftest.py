"""Reports without their picture, for tests of their words."""

from __future__ import annotations

import pytest

from muxrl.orchestrator.reports import report


@pytest.fixture
def drawn() -> None:
    """Has the picture be drawn."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half a second: `test_plots.py` looks at it, and who asks for `drawn`."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(report, "learning_png", lambda _: b"")
