"""Errors if there is no cluster to join; and temporary folders of runs, which are removed at their
end, or later if a run was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise import ray_session
from muxrl.orchestrator.supervise.ray_session import PREFIX, ray_folder


def test_a_cluster_that_cannot_be_joined_may_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:  # like Ray, but without its 20 s of patience
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)

    def story() -> str:
        with pytest.raises(RunFailed) as failure, ray_session.ray_session(1, "10.0.0.5:6379"):
            pytest.fail("joined")
        return str(failure.value)

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert "no Ray cluster at '10.0.0.5:6379' to join: ConnectionError" in story()
    assert "set RAY_AUTH_MODE=token for this command" in story()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # the missing variable was not the cause
    assert "RAY_AUTH_MODE" not in story()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def names(where: Path) -> list[str]:
    return [path.name for path in where.iterdir()]


def test_a_folder_is_removed_at_the_end_of_its_block(temporary: Path) -> None:
    with ray_folder() as folder:
        (folder / "session").mkdir()
        assert names(temporary) == [folder.name]
    assert names(temporary) == []


def test_only_the_folder_of_a_killed_process_is_removed_not_those_in_use_or_of_others(
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


def test_no_folder_counts_as_abandoned_if_the_file_system_has_no_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with ray_folder() as living, ray_folder():
        assert living.exists()
