"""A folder for temporary files that must be empty of muxrl's in the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for temporary files; its name is short because Ray's sockets are in it."""
    folder = Path(f"/tmp/mx{os.getpid()}")
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture(autouse=True)
def _nothing_temporary_is_left(temporary: Path) -> Iterator[None]:
    yield
    assert not list(temporary.glob("muxrl-*"))
