"""Servers end in every case, and save what they have learned if they can."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.servers.scripted_store import make_plan

from muxrl.client import MultiplexingClient
from muxrl.servers.app import expire_episodes
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.feed import Feed, FeedClosed
from muxrl.servers.episodes.warnings import Warnings
from muxrl.servers.server import PolicyServer
from muxrl.servers.training.policies import StillLearning
from muxrl.servers.training.thread import _MAX_RECORDS, LearningThread, PolicyLag

_SERVE = """
import pickle, sys
from muxrl.servers.server import PolicyServer
server = PolicyServer(pickle.load(sys.stdin.buffer))
server.start()
print("serving", server.address, flush=True)
"""


def test_a_process_ends_with_its_main_thread_if_nobody_stops_its_server() -> None:
    plan = make_plan(algorithm="RANDOM")
    # A server that goes on serving is killed after 80 s, and `TimeoutExpired` is raised.
    ended = subprocess.run(
        [sys.executable, "-c", _SERVE], input=pickle.dumps(plan), capture_output=True, timeout=80
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(b"serving 127.0.0.1:"), ended.stderr


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    server = PolicyServer(make_plan(algorithm="random"))
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


def test_a_server_whose_network_fails_reports_it_and_saves_what_it_learned(
    server: PolicyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(counter: int) -> bool:
        for listening in server._network._uvicorn.servers:  # otherwise uvloop warns of open sockets
            listening.close()
        raise RuntimeError("out of descriptors")

    assert server.status().problem == ""
    monkeypatch.setattr(server._network._uvicorn, "on_tick", fail)
    server._network._thread.join(5.0)
    status = server.status()
    assert status.problem == "it has stopped answering: RuntimeError: out of descriptors"
    assert status.phase == "stopping"
    assert server.stop(tmp_path / "saved")
    assert (tmp_path / "saved" / "muxrl.json").is_file()


def test_episodes_expire_after_one_that_could_not_be_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = [RuntimeError("broken"), ["idle"]]

    def expire(now: float) -> list[str]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def until_both() -> None:
        store: Any = SimpleNamespace(expire=expire, warnings=Warnings(), problem="")
        expiry = asyncio.create_task(expire_episodes(store))
        while outcomes and not expiry.done():
            await asyncio.sleep(0.001)
        expiry.cancel()

    monkeypatch.setattr("muxrl.servers.app._EXPIRY_INTERVAL_S", 0.001)
    asyncio.run(asyncio.wait_for(until_both(), 5.0))
    assert not outcomes
    assert "broken" in caplog.text
    assert "1 idle episodes closed as truncated: idle" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_address_of_a_server_is_one_that_clients_understand(host: str) -> None:
    server = PolicyServer(make_plan(algorithm="random", host=host))
    server.start()
    try:
        with MultiplexingClient({"scripted": server.address}) as client:
            assert client.start_episode()
    finally:
        server.stop()


def thread_of(train: Callable[[], dict[str, Any]]) -> LearningThread:
    """Returns a thread that has begun to learn."""
    acting = SimpleNamespace(weights_seq_no=0)
    policies: Any = SimpleNamespace(train=train, policy_lag=PolicyLag(), acting=acting)
    counts = EpisodeCounts()
    thread = LearningThread(
        policies, make_plan(), Feed(max_ahead=0), counts, on_failure=pytest.fail
    )
    thread.start()
    return thread


def test_records_that_nobody_reads_do_not_fill_the_memory() -> None:
    num = _MAX_RECORDS + 5
    left = iter(range(num))

    def train() -> dict[str, Any]:
        if next(left, None) is None:
            raise FeedClosed
        return {}

    trainer = thread_of(train)
    trainer._thread.join(30.0)
    assert [r["iteration"] for r in trainer.drain_records()] == list(range(6, num + 1))
    assert trainer.drain_records() == []


def test_an_update_that_does_not_end_is_reported_when_learning_should_be_over(
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

    trainer = thread_of(train)
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
