"""Temporary folders of runs: removed at their end, or found abandoned by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from muxrl.orchestrator.supervise.ray_session import PREFIX, RayFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def names(where: Path) -> list[str]:
    return [path.name for path in where.iterdir()]


def test_a_folder_is_gone_once_removed(temporary: Path) -> None:
    folder = RayFolder()
    (folder.path / "session").mkdir()
    assert names(temporary) == [folder.path.name]
    folder.remove()
    folder.remove()
    assert names(temporary) == []


def test_folders_in_use_and_of_others_stay_and_that_of_a_killed_process_goes(
    temporary: Path,
) -> None:
    code = (
        "from muxrl.orchestrator.supervise.ray_session import RayFolder\n"
        "import time\nprint(RayFolder().path, flush=True)\ntime.sleep(60)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    abandoned = Path(killed.stdout.readline().strip())
    (temporary / f"{PREFIX}without-lock").mkdir()
    living = RayFolder()
    assert abandoned.exists()
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    newest = RayFolder()
    assert sorted(names(temporary)) == sorted(
        [living.path.name, newest.path.name, f"{PREFIX}without-lock"]
    )
    living.remove()
    newest.remove()
