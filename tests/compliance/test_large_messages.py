"""A message with far more content than its server declared keeps no other client waiting."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest
import requests
from tests.compliance.links import Link
from tests.compliance.real_servers import SEES, MakeServer, make_plan
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from muxrl.client import PolicyClient
from muxrl.client.standalone.muxrl_client import PolicyClient as StandaloneClient
from muxrl.protocol.spaces import Box
from muxrl.servers.network.message_limits import MAX_JSON_LISTS, MAX_PLAIN_BYTES
from muxrl.servers.server import PolicyServer

NUM_IMAGES = 20
HEAD = b'{"items":[{"type":"step","episode_id":"e","t":0,"observations":{"a":['


@pytest.fixture(scope="module")
def small(make_server: MakeServer) -> PolicyServer:
    return make_server(make_plan("RANDOM", {agent: SEES[agent] for agent in "ab"}))


@pytest.fixture(scope="module")
def large(make_server: MakeServer) -> PolicyServer:
    image = Box((84, 84, 4), "uint8", 0, 255)
    return make_server(make_plan("RANDOM", {f"a{i}": image for i in range(NUM_IMAGES)}))


def json_of(num_lists: int) -> bytes:
    return HEAD + b"[0]," * (num_lists - 1) + b"[0]]}}]}"


def ask(websocket: ClientConnection, message: bytes) -> str:
    websocket.send(message, text=True)
    return str(websocket.recv(timeout=60.0))


class Watch:
    """Asks for a server's health again and again, and notes the longest time to an answer."""

    def __init__(self, server: PolicyServer) -> None:
        self.url = f"http://{server.address}/v1/health"
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        with requests.Session() as session:
            while not self._is_over.wait(0.01):
                begun = time.monotonic()
                assert session.get(self.url, timeout=60.0).status_code == 200
                self.longest_s = max(self.longest_s, time.monotonic() - begun)


@pytest.mark.parametrize("name", ["small", "large"])
def test_fifteen_million_lists_are_refused_at_once(
    name: str, small: PolicyServer, large: PolicyServer
) -> None:
    """Decoding such a message took 41 s and 2.3 GB; it is refused before, and keeps nobody
    waiting."""
    server = {"small": small, "large": large}[name]
    body = json_of(15_000_000)
    with Watch(server) as watch:
        answer = requests.post(f"http://{server.address}/v1/step", body, timeout=60.0)
        assert answer.status_code == 413
        with connect(f"ws://{server.address}/v1/ws", proxy=None, compression=None) as websocket:
            # Over what the spaces can need: the server closes, with a refusal if one can be sent.
            if name == "small":
                with pytest.raises(ConnectionClosed):
                    ask(websocket, body)
            else:
                assert '"code":413' in ask(websocket, body)
    assert watch.longest_s < 10.0  # leaves time for a busy machine


@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_the_slowest_message_that_passes_is_answered_soon(kind: str, small: PolicyServer) -> None:
    """Decoding runs without the garbage collector, with which two million lists took 5 s."""
    num = MAX_PLAIN_BYTES - 100
    step = b"\x84\xa4type\xa4step\xaaepisode_id\xa1e\xa1t\x00\xacobservations\x81\xa1a"
    lists = b"\xdd" + num.to_bytes(4, "big") + b"\x90" * num
    message = (
        json_of(MAX_JSON_LISTS - 20) if kind == "json" else b"\x81\xa5items\x91" + step + lists
    )
    address = f"ws://{small.address}/v1/ws"
    begun = time.process_time()
    with connect(address, proxy=None, compression=None) as websocket:
        websocket.send(message, text=kind == "json")
        reply = websocket.recv(timeout=60.0)
    assert "was never started here" in (reply if isinstance(reply, str) else reply.decode("latin1"))
    assert time.process_time() - begun < 3.0


@pytest.mark.parametrize(
    ("kind", "how", "num_episodes"),
    [
        (PolicyClient, {"transport": "http"}, 1),
        (PolicyClient, {"transport": "websocket"}, 4),  # each number of the images takes one byte
        (StandaloneClient, {}, 1),
    ],
    ids=["http", "websocket", "standalone"],
)
def test_a_long_message_has_its_time_on_a_slow_link(
    kind: Any, how: dict[str, str], num_episodes: int, large: PolicyServer
) -> None:
    """Sending takes longer than a server may be silent: a third of the client's patience."""
    seen = {f"a{i}": np.full((84, 84, 4), 255, np.uint8) for i in range(NUM_IMAGES)}
    with Link(large.address) as link, kind(link.address, patience_s=1.5, **how) as client:
        ids = [client.start_episode() for _ in range(num_episodes)]
        link.bytes_per_s = 1_500_000
        begun = time.monotonic()
        if num_episodes == 1:
            assert client.get_action(ids[0], seen).keys() == seen.keys()
        else:
            assert len(client.get_action(ids, dict.fromkeys(ids, seen))) == num_episodes
        assert time.monotonic() - begun > 1.0
        assert link.num_opened <= 3, "it was sent once"
        link.bytes_per_s = math.inf
        for episode_id in ids:
            client.end_episode(episode_id)
