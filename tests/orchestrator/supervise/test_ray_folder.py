"""Temporary folders of runs: removed at their end, or found abandoned by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from muxrl.orchestrator.supervise.ray_session import PREFIX, ray_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def names(where: Path) -> list[str]:
    return [path.name for path in where.iterdir()]


def test_a_folder_is_gone_once_left(temporary: Path) -> None:
    with ray_folder() as folder:
        (folder / "session").mkdir()
        assert names(temporary) == [folder.name]
    assert names(temporary) == []


def test_folders_in_use_and_of_others_stay_and_that_of_a_killed_process_goes(
    temporary: Path,
) -> None:
    code = (
        "from muxrl.orchestrator.supervise.ray_session import ray_folder\n"
        "import time\nwith ray_folder() as folder: print(folder, flush=True); time.sleep(60)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    abandoned = Path(killed.stdout.readline().strip())
    (temporary / f"{PREFIX}without-lock").mkdir()
    with ray_folder() as living:
        assert abandoned.exists()
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        with ray_folder() as newest:
            assert sorted(names(temporary)) == sorted(
                [living.name, newest.name, f"{PREFIX}without-lock"]
            )


def test_where_the_file_system_has_no_locks_nothing_is_taken_for_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with ray_folder() as living, ray_folder():
        assert living.exists()
