"""What is said where there is no cluster to join."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise import ray_session


def test_a_cluster_that_cannot_be_joined_may_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:  # as Ray does, without its 20 s of patience
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
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # that was not it
    assert "RAY_AUTH_MODE" not in story()
