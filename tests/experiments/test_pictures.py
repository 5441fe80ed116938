from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib.image
import pytest

from muxrl.experiments import pictures


@pytest.mark.parametrize("name", pictures._DRAWN)
def test_what_is_committed_can_be_drawn_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(pictures.RESULTS / name, folder, ignore=shutil.ignore_patterns("*.png"))
    pictures._DRAWN[name](folder)
    (picture,) = folder.glob("*.png")
    assert matplotlib.image.imread(picture)[..., :3].std() > 0.05
