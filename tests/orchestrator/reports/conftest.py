"""A fixture for reports without a picture, for tests of their text."""

from __future__ import annotations

import pytest

from muxrl.orchestrator.reports import report


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the picture, which takes half a second; `test_plots.py` tests it."""
    monkeypatch.setattr(report, "learning_png", lambda _: b"")
