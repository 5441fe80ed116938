"""A report without its picture, for tests of its words."""

from __future__ import annotations

import pytest

from muxrl.orchestrator.reports import report


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture takes half a second: `test_plots.py` looks at it."""
    monkeypatch.setattr(report, "learning_png", lambda _: b"")
