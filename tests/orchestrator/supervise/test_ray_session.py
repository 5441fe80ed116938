"""Which processes a local Ray has, and what is said where there is no cluster to join."""

from __future__ import annotations

from typing import Any

import pytest
import ray

import psutil  # isort: skip  # Ray brings it along, once it is imported

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise import ray_session


@pytest.mark.ray
def test_a_local_ray_has_no_process_that_nobody_asks(running_ray: None) -> None:
    commands = [" ".join(p.cmdline()) for p in psutil.Process().children()]
    for needed in ("gcs_server", "raylet"):
        assert any(needed in command for command in commands)
    for superfluous in ("dashboard.py", "log_monitor.py", "monitor.py"):
        assert not any(superfluous in command for command in commands)


def test_a_cluster_that_cannot_be_joined_may_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:  # as Ray does, without its 20 s of patience
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_session, "_init", refuse)

    def story() -> str:
        with pytest.raises(RunFailed) as failure, ray_session.ray_session(1, "10.0.0.5:6379"):
            pytest.fail("joined")
        return str(failure.value)

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert "no Ray cluster at '10.0.0.5:6379' to join: ConnectionError" in story()
    assert "set RAY_AUTH_MODE=token for this command" in story()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # that was not it
    assert "RAY_AUTH_MODE" not in story()
