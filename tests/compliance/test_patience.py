"""Clients are patient with links to real servers that are cut, hang, or lose what they carry.

Nothing is lost or recorded twice, a lost server is named in time, and another episode may follow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.scripted_servers import CountingSimulation
from tests.compliance.links import Link
from tests.compliance.real_servers import SEES, make_plan, running

from muxrl.client import MultiplexingClient, ServerLost, ServerUnavailable
from muxrl.client.env_loop import EnvLoop
from muxrl.servers.config import LimitsConfig
from muxrl.servers.server import PolicyServer

TRANSPORTS = ["websocket", "http"]
SEEN = {"a": [0.0, 0.0], "b": [0.0, 0.0]}


@pytest.fixture
def start_server() -> Iterator[Callable[..., PolicyServer]]:
    """Gives a function that starts random servers; they are stopped after the test."""
    with contextlib.ExitStack() as stack:

        def start(agents: str = "ab", **fields: Any) -> PolicyServer:
            plan = make_plan("RANDOM", {agent: SEES[agent] for agent in agents}, **fields)
            return stack.enter_context(running(plan))

        yield start


@pytest.fixture
def server(start_server: Callable[..., PolicyServer]) -> PolicyServer:
    return start_server()


@pytest.fixture
def link(server: PolicyServer) -> Iterator[Link]:
    with Link(server.address) as link:
        yield link


def play(
    client: MultiplexingClient, num_steps: int = 3, at: Callable[[int], None] | None = None
) -> None:
    """Plays an episode; calls `at` with each `t` before the step."""
    episode_id = client.start_episode()
    for t in range(num_steps):
        if at is not None:
            at(t)
        client.get_action(episode_id, SEEN)
        client.log_returns(episode_id, {"a": 1.0, "b": 0.5})
    client.end_episode(episode_id)


def counts(server: PolicyServer) -> tuple[int, int, int]:
    counts = server.policies.store.counts
    return counts.num_env_steps, counts.num_episodes, counts.num_aborted


# --- outages that a client survives ----------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("what", ["frame", "answer", "half"])
def test_a_frame_whose_answer_does_not_come_is_sent_again(
    server: PolicyServer, link: Link, transport: Any, what: Any
) -> None:
    with MultiplexingClient([link.address], transport=transport, patience_s=3.0) as client:
        began = time.monotonic()
        play(client, at=lambda t: link.swallow(what) if t == 1 else None)
        assert time.monotonic() - began < 2.5, "before patience ends"
        assert link.num_swallowed == (what != "half")
        assert client.num_mismatches == 0
        assert counts(server) == (3, 1, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("state", ["down", "hung"])
def test_an_episode_survives_an_outage_that_is_shorter_than_the_patience(
    server: PolicyServer, link: Link, transport: Any, state: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(t: int) -> None:
        if t == 1:
            link.set(state)
            threading.Timer(1.0, link.set, ["up"]).start()

    with MultiplexingClient([link.address], transport=transport) as client:
        play(client, at=fail)
        assert client.num_mismatches == 0
        assert counts(server) == (3, 1, 0)
    if state == "down":
        assert "trying again for up to 30 s" in caplog.text
        assert "is back after 1." in caplog.text


def test_a_server_that_stops_is_waited_for(
    start_server: Callable[..., PolicyServer], server: PolicyServer, link: Link
) -> None:
    """While a server stops it refuses episodes (503); the client waits for the next server."""
    server.policies.store.is_accepting = False

    def replace() -> None:
        link.target = start_server().address
        link.cut()

    with MultiplexingClient([link.address]) as client:
        threading.Timer(0.7, replace).start()
        play(client)
        assert client.num_mismatches == 0


# --- outages that a client does not survive --------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("state", ["down", "hung"])
def test_a_lost_server_is_named_and_the_next_start_waits_for_it(
    server: PolicyServer, link: Link, transport: Any, state: Any
) -> None:
    with MultiplexingClient([link.address], transport=transport, patience_s=1.0) as client:
        link_fails = lambda t: link.set(state) if t == 1 else None  # noqa: E731
        began = time.monotonic()
        with pytest.raises(ServerLost) as loss:
            play(client, at=link_fails)
        assert 1.0 <= time.monotonic() - began < 4.0
        assert loss.value.server_id == "random"
        for words in ("server 'random'", link.address, "no answer for 1", "start_episode()"):
            assert words in str(loss.value)
        threading.Timer(0.5, link.set, ["up"]).start()
        play(client)
        assert client.num_mismatches == 0
        assert server.status().num_open_episodes == 0, "the lost one is closed there, too"


@pytest.mark.parametrize("fields", [{"server_id": "other"}, {"agents": "abc"}])
def test_another_server_in_its_place_is_refused(
    start_server: Callable[..., PolicyServer], server: PolicyServer, link: Link, fields: Any
) -> None:
    other = start_server(**fields)

    def replace() -> None:
        link.target = other.address
        link.set("up")

    with MultiplexingClient([link.address]) as client:
        link.set("down")
        threading.Timer(0.5, replace).start()
        with pytest.raises(ServerUnavailable, match="lost, and now another server answers"):
            play(client)
        assert other.status().num_open_episodes == 0
        link.target = server.address
        play(client)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_hung_servers_take_no_longer_than_one(
    start_server: Callable[..., PolicyServer], transport: Any
) -> None:
    """The client gives up both at once, and closes its four episodes on the third server."""
    servers = [start_server(agent, server_id=agent) for agent in "abc"]
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(server.address)) for server in servers]
        client = MultiplexingClient(
            [one.address for one in links], transport=transport, patience_s=1.0
        )
        stack.enter_context(client)
        ids = [client.start_episode() for _ in range(4)]
        seen = {e: {**SEEN, "c": [[0, 0], [0, 0]]} for e in ids}
        client.get_action(ids, seen)
        for one in links[:2]:
            one.set("hung")
        began = time.monotonic()
        with pytest.raises(ServerLost):
            client.get_action(ids, seen)
        assert time.monotonic() - began < 5.0
        assert servers[2].status().num_open_episodes == 0
        assert counts(servers[2])[2] == 4


def test_giving_up_ends_a_wait(server: PolicyServer, link: Link) -> None:
    with MultiplexingClient([link.address], patience_s=60.0) as client:
        link.set("down")
        threading.Timer(0.3, client.give_up).start()
        began = time.monotonic()
        with pytest.raises(ServerLost):
            client.start_episode()
        assert time.monotonic() - began < 5.0


# --- a server that is busy ------------------------------------------------------------------


class Learner:
    """Closes the gate of a server as an update does: the server waits for its learner."""

    def __init__(self, server: PolicyServer) -> None:
        self.feed = server.policies.feed
        self.feed._is_discarding = False
        self.feed._is_learning = True

    def finish(self) -> None:
        self.feed.finish_learning()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_learns_is_not_lost(server: PolicyServer, transport: Any) -> None:
    with MultiplexingClient([server.address], transport=transport, patience_s=0.5) as client:
        learner = Learner(server)
        threading.Timer(1.5, learner.finish).start()
        play(client)
        assert client.num_mismatches == 0
        assert counts(server) == (3, 1, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_update_that_takes_too_long_is_an_error(server: PolicyServer, transport: Any) -> None:
    with MultiplexingClient(
        [server.address], transport=transport, patience_s=1.0, update_timeout_s=1.5
    ) as client:
        learner = Learner(server)
        with pytest.raises(
            ServerUnavailable, match=r"while_learning: wait.*update_timeout_s"
        ) as loss:
            play(client)
        assert not isinstance(loss.value, ServerLost)
        learner.finish()


def test_patience_begins_when_no_other_server_is_waited_for(
    start_server: Callable[..., PolicyServer],
) -> None:
    learning, lost = (start_server(agent, server_id=agent) for agent in "ab")
    with (
        Link(lost.address) as link,
        MultiplexingClient([learning.address, link.address], patience_s=1.4) as client,
    ):
        episode_id = client.start_episode()
        link.set("down")
        learner = Learner(learning)
        threading.Timer(1.7, learner.finish).start()
        threading.Timer(2.4, link.set, ["up"]).start()
        assert client.get_action(episode_id, SEEN).keys() == {"a", "b"}


# --- episodes in which one server is not called ----------------------------------------------


@pytest.mark.parametrize("num_steps_before", [0, 1])
def test_an_episode_does_not_expire_where_nobody_acts(
    start_server: Callable[..., PolicyServer], num_steps_before: int
) -> None:
    limits = LimitsConfig(episode_timeout_s=0.6)
    idle = start_server("b", server_id="idle", limits=limits)
    acting = start_server("a", server_id="acting", limits=limits)
    with MultiplexingClient([idle.address, acting.address]) as client:
        episode_id = client.start_episode()
        for _ in range(num_steps_before):
            client.get_action(episode_id, SEEN)
        for _ in range(12):
            time.sleep(0.1)
            client.get_action(episode_id, {"a": [0.0, 0.0]})
            client.log_returns(episode_id, {"a": 1.0, "b": 1.0})
            for server in (idle, acting):
                assert server.policies.store.expire(time.monotonic()) == []
        assert client.get_action(episode_id, SEEN).keys() == {"a", "b"}
        client.end_episode(episode_id)
        assert client.num_mismatches == 0


# --- the loop -------------------------------------------------------------------------------


def test_a_loop_does_not_wait_for_ever(server: PolicyServer, link: Link) -> None:
    simulation = CountingSimulation("ab", num_steps=5)
    simulation._observations = lambda: SEEN  # type: ignore[method-assign]
    with MultiplexingClient([link.address], patience_s=0.5) as client:
        loop = EnvLoop([simulation], client, on_lost="restart")
        with pytest.raises(ServerLost):
            loop.run(should_stop=lambda: loop.num_env_steps == 22 and link.set("down") is not None)
        assert loop.num_lost_episodes == 1
