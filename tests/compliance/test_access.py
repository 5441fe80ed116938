"""Who may use a server, and how little a hostile or mistaken peer can take from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from tests.compliance.real_servers import SEES, TOKEN, MakeServer, make_plan, running, wait_until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from muxrl.servers.config import LimitsConfig
from muxrl.servers.network import http_connection
from muxrl.servers.network.access import is_loopback
from muxrl.servers.server import PolicyServer

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def open_server(make_server: MakeServer) -> PolicyServer:
    """Gives a server that requires no token."""
    limits = LimitsConfig(max_connections=8)
    return make_server(make_plan("RANDOM", {"a": SEES["a"]}, limits=limits))


@pytest.fixture
def url(open_server: PolicyServer) -> str:
    return f"http://{open_server.address}"


def dial(server: PolicyServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10.0)


@pytest.fixture
def raw(open_server: PolicyServer) -> Iterator[socket.socket]:
    with dial(open_server) as connection:
        yield connection


def request_bytes(head: str, body: bytes = b"") -> bytes:
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


HALF_A_BODY = request_bytes("POST /v1/step HTTP/1.1\nHost: localhost\nContent-Length: 100", b"{")


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Reads one answer from a connection; returns its status and its body."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


# --- web pages and names ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"), [("Origin: http://evil.example", 403), ("Authorization: Bearer no", 401)]
)
def test_a_client_that_is_not_allowed_in_keeps_no_connection(
    ppo: PolicyServer, headers: str, code: int
) -> None:
    with dial(ppo) as connection:
        connection.sendall(request_bytes(f"GET /v1/spec HTTP/1.1\nHost: 127.0.0.1\n{headers}"))
        assert answer_of(connection)[0] == code
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        *((h, True) for h in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:80")),
        *((h, True) for h in ("[::1]", "::1", "app.localhost:1", "localhost.")),
        *((h, False) for h in ("", "evil.example", "10.0.0.1", "127.0.0.1.evil.example:80")),
        *((h, False) for h in ("localhost.evil.example", "[::2]:80", "0.0.0.0", "notlocalhost")),
    ],
)
def test_only_names_of_this_machine_are_loopback_names(host: str, is_ours: bool) -> None:
    assert is_loopback(host) is is_ours


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"BEARER  {TOKEN}", 200),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN} x", 401),
        (f"Bearer\t{TOKEN}", 401),
        (f'Bearer "{TOKEN}"', 401),
        (f"Bearer {TOKEN},Bearer {TOKEN}", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN.upper()}", 401),
        ("Bearer", 401),
        ("Bearer ÿ", 401),
        ("", 401),
    ],
)
def test_a_token_is_taken_as_a_bearer_token_alone(
    ppo: PolicyServer, authorization: str, code: int
) -> None:
    headers = {"Authorization": authorization}
    in_bytes = {"Authorization": authorization.encode("latin-1")}
    answer = requests.get(f"http://{ppo.address}/v1/spec", headers=in_bytes)
    assert answer.status_code == code
    assert code == 200 or "Authorization: Bearer TOKEN" in answer.json()["message"]
    assert TOKEN not in answer.text
    url = f"ws://{ppo.address}/v1/ws"
    if code == 200:
        with connect(url, additional_headers=headers, proxy=None):
            return
    with pytest.raises(InvalidStatus) as refusal:
        connect(url, additional_headers=headers, proxy=None)
    assert refusal.value.response.status_code == code


# --- requests that are not of this protocol --------------------------------------------------


@pytest.mark.parametrize(
    "episode_id", ["", "a/b", "x" * 257, "line\nbreak", "\x1b[31m", "x" * 5_000_000]
)
def test_ids_that_cannot_be_kept_or_logged_are_refused(url: str, episode_id: str) -> None:
    answer = requests.post(f"{url}/v1/episodes", json={"episode_id": episode_id})
    assert answer.status_code == 400
    assert "cannot be an episode's id" in answer.json()["message"]
    assert "rows" not in answer.json()["message"]
    assert len(answer.json()["message"]) < 800
    assert "\n" not in answer.json()["message"]


def test_a_shutdown_request_is_obeyed_or_answered_with_what_ends_the_server() -> None:
    asked: list[bool] = []
    plan = make_plan("RANDOM", {"a": SEES["a"]}, token=TOKEN)
    for on_shutdown, code in ((None, 403), (lambda: asked.append(True), 200)):
        with running(plan, on_shutdown=on_shutdown) as server:
            answer = requests.post(f"http://{server.address}/v1/shutdown", headers=BEARER)
        assert answer.status_code == code
        if code == 403:
            assert "belongs to a run" in answer.json()["message"]
            assert "muxrl stop" in answer.json()["message"]
    assert asked == [True]


def test_a_client_that_offers_http_2_is_served_body_and_all(raw: socket.socket) -> None:
    body = b'{"episode_id": "from-java"}'
    raw.sendall(
        request_bytes(
            "POST /v1/episodes HTTP/1.1\nHost: 127.0.0.1\nConnection: Upgrade, HTTP2-Settings\n"
            "Upgrade: h2c\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\n"
            f"Content-Length: {len(body)}",
            body,
        )
    )
    assert answer_of(raw) == (200, {"type": "started", "episode_id": "from-java"})
    raw.sendall(
        request_bytes(
            "POST /v1/episodes/from-java/abort HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0"
        )
    )
    assert answer_of(raw)[0] == 200


# --- how little a peer can take --------------------------------------------------------------


def test_a_large_request_head_is_refused_before_all_of_it_is_read(raw: socket.socket) -> None:
    raw.sendall(b"GET /v1/spec HTTP/1.1\r\nHost: localhost\r\nX-Large: ")
    sent = 0
    # The server closes the connection, which ends in a reset or in a broken pipe.
    with contextlib.suppress(OSError):
        while sent < 200_000_000:
            sent += raw.send(b"x" * 10_000)
    assert sent < 20_000_000


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/spec HT",
        HALF_A_BODY,
        request_bytes(
            "GET /v1/ws HTTP/1.1\nHost: localhost\nUpgrade: websocket\nConnection: Upgrade\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\nSec-WebSocket-Version: 13"
        ),
    ],
    ids=["nothing", "half a head", "half a body", "half a frame"],
)
def test_a_connection_with_half_a_request_is_closed_after_a_while(
    open_server: PolicyServer,
    sent: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_DEADLINE_S", 0.3)
    with dial(open_server) as slow:
        slow.sendall(sent)
        if b"websocket" in sent:
            assert slow.recv(1000).startswith(b"HTTP/1.1 101")
            slow.sendall(b"\x82\xfe\xea\x60mask and a beginning")
            assert b"not complete" in slow.recv(1000)
        assert slow.recv(1000) == b""
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_a_websocket_outlives_the_deadline_of_its_request(
    open_server: PolicyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_DEADLINE_S", 0.2)
    with connect(f"ws://{open_server.address}/v1/ws", proxy=None) as connection:
        time.sleep(0.5)
        assert connection.ping().wait(5.0)


def test_a_connection_that_breaks_in_the_middle_of_a_body_leaves_no_traceback(
    open_server: PolicyServer, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    for _ in range(5):
        with dial(open_server) as connection:
            connection.sendall(HALF_A_BODY)
    assert requests.get(f"{url}/v1/health").status_code == 200
    time.sleep(0.1)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_connections_beyond_the_limit_are_refused(open_server: PolicyServer, url: str) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(8):
            held.enter_context(dial(open_server))
        with dial(open_server) as one_more:
            code, answer = answer_of(one_more)
        assert code == 503
        assert "8 connections already" in answer["message"]
    wait_until(lambda: requests.get(f"{url}/v1/health").status_code != 503, 5.0)


def test_a_connection_may_be_silent_as_long_as_an_episode(make_server: MakeServer) -> None:
    limits = LimitsConfig(episode_timeout_s=1.0)
    server = make_server(make_plan("RANDOM", {"a": SEES["a"]}, limits=limits, server_id="brief"))
    ask = request_bytes("GET /v1/health HTTP/1.1\nHost: 127.0.0.1")
    with dial(server) as connection:
        for pause_s in (0.0, 0.6):
            time.sleep(pause_s)
            connection.sendall(ask)
            assert answer_of(connection)[0] == 200
        assert connection.recv(1) == b"", "and no longer"
