"""Servers end, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.servers.scripted_store import make_plan

from muxrl.servers.episodes.store import EpisodeCounts
from muxrl.servers.feed import Feed, FeedClosed
from muxrl.servers.policies import StillLearning
from muxrl.servers.server import PolicyServer
from muxrl.servers.trainer import Trainer

_SERVE = """
    from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
    from muxrl.servers.config import ServerConfig
    from muxrl.servers.server import PolicyServer

    config = ExperimentConfig(
        name="ends",
        simulation=SimulationConfig(
            env="muxrl.experiments.simulations.zero_cost:ZeroCost", kwargs={"num_agents": 1}
        ),
        servers={"mine": ServerConfig(algorithm="random", agents=["*"])},
    )
    (plan,) = prepare(config, needs_stop=False).servers.values()
    server = PolicyServer(plan)
    server.start()
    print("serving", server.address, flush=True)
"""


def test_a_process_ends_with_its_main_thread_if_nobody_stops_its_server() -> None:
    # It raises `TimeoutExpired`, and kills it, if it serves on.
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SERVE)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("serving 127.0.0.1:"), ended.stderr


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    server = PolicyServer(dataclasses.replace(make_plan(), algorithm="random"))
    server.start()
    yield server
    server.stop()


def test_a_checkpoint_that_cannot_be_written_does_not_keep_it_serving(
    server: PolicyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(path: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(server.policies, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        server.stop(tmp_path)
    assert "server" not in [thread.name for thread in threading.enumerate()]


def test_an_update_that_goes_on_is_said_where_learning_was_to_be_over(
    server: PolicyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.policies, "finish", lambda timeout_s: False)
    with pytest.raises(StillLearning, match="'scripted' is still in an update after 3 s"):
        server.finish_training(3.0)


def test_nothing_is_saved_in_the_middle_of_an_update() -> None:
    is_in_update, may_end = threading.Event(), threading.Event()

    def train() -> dict[str, Any]:
        is_in_update.set()
        may_end.wait()
        raise FeedClosed

    trainer = Trainer(
        SimpleNamespace(train=train),  # type: ignore[arg-type]
        make_plan(),
        Feed(max_ahead=0),
        EpisodeCounts(),
        max_iterations=None,
        on_failure=pytest.fail,
    )
    trainer.start()
    assert is_in_update.wait(5.0)
    assert not trainer.stop(0.01)
    saved = []
    try:
        with pytest.raises(StillLearning, match=r"'scripted' is still in an update after 0\.1 s"):
            trainer.between_updates(lambda: saved.append("too late"), timeout_s=0.1)
        saving = threading.Thread(
            target=trainer.between_updates, args=[lambda: saved.append("in time"), 5.0]
        )
        saving.start()
    finally:
        may_end.set()
    saving.join(5.0)
    assert trainer.stop(5.0)
    assert saved == ["in time"]
    trainer.between_updates(lambda: saved.append("after its end"), timeout_s=0.0)
    assert saved == ["in time", "after its end"]
