"""A gateway has one thread that asks servers; others hold it, evaluate and stop it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.client.scripted_servers import Server
from tests.compliance.real_servers import wait_until

from muxrl.client import MultiplexingClient
from muxrl.client.errors import ServerLost
from muxrl.orchestrator.gateway.gateway import Gateway
from muxrl.orchestrator.gateway.open_episode import Evaluation
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Refused,
    Started,
    StartEpisode,
    Step,
)

PATIENCE_S = 20.0
SEEN = {"a": np.zeros(1, np.float32)}


class SlowServer(Server):
    """A server that answers once `may_answer` is set, and loses patience as a real one does."""

    def __init__(self) -> None:
        super().__init__("left", "a", [])
        self._spec = msgspec.structs.replace(self._spec, max_episodes=8, episode_timeout_s=60.0)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()
        self.has_given_up = threading.Event()

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        replies = super().receive(patience_s)
        self.is_asked.set()
        while not self.may_answer.wait(0.02):
            if self.has_given_up.is_set():
                raise ServerLost("left is gone", server_id="left")
        return replies

    def give_up(self) -> None:
        self.has_given_up.set()


class Asked:
    """A gateway in front of one server, and threads for calls that wait for it."""

    def __init__(self, server: SlowServer) -> None:
        self.server = server
        self.gateway = Gateway(MultiplexingClient([server]), "memory:1", "")
        self.threads = ThreadPoolExecutor(4)

    def ask(self, item: AnyItem) -> AnyReply:
        """Returns the gateway's answer, as over the network."""
        (reply,) = asyncio.run(self.gateway.answered([item]))
        return reply

    def soon(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self.threads.submit(call, *arguments)

    def keep_busy(self) -> Future[Any]:
        """Makes the gateway wait for a server that answers only once `may_answer` is set."""
        self.server.may_answer.clear()
        self.server.is_asked.clear()
        answer = self.soon(self.ask, StartEpisode("slow"))
        assert self.server.is_asked.wait(PATIENCE_S)
        return answer


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked(SlowServer())
    yield asked
    asked.server.may_answer.set()
    asked.gateway.stop()
    asked.threads.shutdown()


def test_an_error_in_the_gateway_costs_only_its_episode(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = asked.gateway.episodes
    receive = episodes.receive

    def failing(item: AnyItem) -> Any:
        return 1 / 0 if item.episode_id == "bad" else receive(item)

    for name in ("good", "bad"):
        assert isinstance(asked.ask(StartEpisode(name)), Started)
    monkeypatch.setattr(episodes, "receive", failing)
    good, bad = asyncio.run(asked.gateway.answered([Step(e, 0, SEEN) for e in ("good", "bad")]))
    assert isinstance(good, Actions)
    assert isinstance(bad, Refused)
    assert (bad.code, "ZeroDivisionError" in bad.message) == (500, True)
    assert list(episodes.open) == ["good"]


def test_an_idle_episode_expires_while_others_play(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muxrl.orchestrator.gateway.gateway._LOOK_EVERY_S", 0.2)
    asked.gateway.episodes._spec = msgspec.structs.replace(
        asked.gateway.spec, episode_timeout_s=0.3
    )
    asked.ask(StartEpisode("idle"))

    def is_expired() -> bool:
        assert asked.ask(AbortEpisode("traffic")) == Aborted("traffic")
        return asked.gateway.status().num_expired == 1

    wait_until(is_expired)
    assert not asked.server.open


def test_an_error_while_episodes_expire_does_not_end_the_gateway(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()

    def fail(now: float) -> None:
        has_failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(asked.gateway.episodes, "expire", fail)
    assert has_failed.wait(PATIENCE_S)
    assert asked.ask(StartEpisode("e")) == Started("e")


def test_a_gateway_that_waits_for_a_server_says_so_in_its_status(asked: Asked) -> None:
    """Otherwise clients would give it up: its status does not ask the servers behind it."""
    assert not asked.gateway.status().is_waiting_for_learner
    answer = asked.keep_busy()
    wait_until(lambda: asked.gateway.status().is_waiting_for_learner)
    asked.server.may_answer.set()
    assert answer.result(PATIENCE_S) == Started("slow")
    wait_until(lambda: not asked.gateway.status().is_waiting_for_learner)
    asked.gateway.hold()
    assert asked.gateway.wait_held(PATIENCE_S)
    wait_until(lambda: asked.gateway.status().is_waiting_for_learner)


def test_a_hold_that_came_too_late_does_not_hinder_the_next(asked: Asked) -> None:
    answer = asked.keep_busy()
    asked.gateway.hold()
    assert not asked.gateway.wait_held(0.01)
    asked.gateway.release()
    asked.gateway.hold()
    asked.server.may_answer.set()
    assert answer.result(PATIENCE_S) == Started("slow")
    assert asked.gateway.wait_held(PATIENCE_S)
    step = asked.soon(asked.ask, Step("slow", 0, SEEN))
    assert not step.done()
    asked.gateway.release()
    assert isinstance(step.result(PATIENCE_S), Actions)


def test_a_gateway_that_is_held_again_without_a_release_is_held_at_once(asked: Asked) -> None:
    """A last checkpoint that met a lost server is tried once more."""
    for _ in range(2):
        asked.gateway.hold()
        assert asked.gateway.wait_held(PATIENCE_S)
    asked.gateway.release()
    assert asked.ask(StartEpisode("e")) == Started("e")


def test_a_gateway_stops_while_it_is_held(asked: Asked) -> None:
    asked.gateway.hold()
    assert asked.gateway.wait_held(PATIENCE_S)
    step = asked.soon(asked.ask, StartEpisode("e"))
    wait_until(lambda: not asked.gateway._frames.empty())
    assert asked.gateway.stop()
    assert isinstance(step.result(PATIENCE_S), AnyReply)


def test_a_gateway_stops_while_an_evaluation_waits_for_a_lost_server(asked: Asked) -> None:
    lost = SlowServer()
    lost.may_answer.clear()
    evaluation = Evaluation([MultiplexingClient([lost])], 1, {})
    done = asked.soon(asked.gateway.evaluate, evaluation, PATIENCE_S)
    wait_until(lambda: asked.gateway.wanted._evaluation is evaluation)
    asked.soon(asked.ask, StartEpisode("e"))
    assert lost.is_asked.wait(PATIENCE_S)
    assert asked.gateway.stop()
    assert not done.result(PATIENCE_S)


def test_an_evaluation_that_nobody_plays_on_is_given_up_and_closed(asked: Asked) -> None:
    """The evaluation's client is closed in another thread; no open episode may use it then."""
    server = SlowServer()
    evaluation = Evaluation([MultiplexingClient([server])], 1, {})
    done = asked.soon(asked.gateway.evaluate, evaluation, 1.0)
    wait_until(lambda: asked.gateway.wanted._evaluation is evaluation)
    assert asked.ask(StartEpisode("e")) == Started("e", is_evaluation=True)
    assert not done.result(PATIENCE_S)
    assert not server.open
    assert asked.gateway.status().num_open_episodes == 0


def test_a_step_beyond_the_budget_waits_until_the_budget_grows(asked: Asked) -> None:
    asked.gateway.limit(0)
    allowed = asked.soon(asked.gateway.allow, 1)
    asked.ask(StartEpisode("e"))
    assert isinstance(asked.ask(Step("e", 0, SEEN)), Actions)
    allowed.result(PATIENCE_S)
    answer = asked.soon(asked.ask, Step("e", 1, SEEN))
    wait_until(lambda: asked.gateway.status().is_waiting_for_learner)
    assert not answer.done()
    allowed = asked.soon(asked.gateway.allow, 3)
    assert isinstance(answer.result(PATIENCE_S), Actions)
    assert not allowed.done()
    asked.gateway.end_training()
    allowed.result(PATIENCE_S)
