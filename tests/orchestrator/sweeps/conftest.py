from __future__ import annotations

import pytest
from tests.orchestrator.probed import probe_once

from muxrl.orchestrator.sweeps import plan


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "probe", probe_once)
