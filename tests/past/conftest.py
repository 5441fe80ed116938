"""A fixture: a copy of the past's files for each test, since commands write into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.past.figures import unpack


@pytest.fixture
def past(tmp_path: Path) -> Path:
    """Gives a folder with the runs "one" and "two" and the sweep "swept"."""
    unpack(tmp_path)
    return tmp_path
