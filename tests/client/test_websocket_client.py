"""The WebSocket client when a server closes connections: it sends again once, then raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from muxrl.client import PolicyClient
from muxrl.client.errors import ServerUnavailable
from muxrl.client.http import HttpTransport
from muxrl.client.websocket import WebSocketTransport
from muxrl.protocol.codec import decode_batch, encode, encode_json
from muxrl.protocol.message_sizes import answer_bytes
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    AgentInfo,
    BatchReply,
    Refused,
    ServerSpec,
)
from muxrl.protocol.spaces import Discrete

Connect = Callable[..., WebSocketTransport]


@pytest.fixture
def closing_server() -> Iterator[Connect]:
    """Gives a function that connects to a server, which closes so many connections at their first
    frame."""
    servers = []

    def connect(num_closed: int, token: str = "key") -> WebSocketTransport:
        left = [(1012, ""), (1011, "see its log")][:num_closed]

        def converse(connection: ServerConnection) -> None:
            frame = connection.recv()
            if left:
                connection.close(*left.pop(0))
                return
            assert isinstance(frame, bytes)
            replies = [Aborted(item.episode_id) for item in decode_batch(frame).items]
            connection.send(encode(BatchReply(replies)))  # type: ignore[arg-type]
            assert not list(connection), "the client goes first"

        def let_in(connection: ServerConnection, request: Request) -> Response | None:
            if "Authorization" in request.headers:
                return None
            story = encode_json(Refused("", code=401, message="none came")).decode()
            return connection.respond(HTTPStatus.UNAUTHORIZED, story)

        server = serve(converse, "127.0.0.1", 0, process_request=let_in)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.socket.getsockname()[:2]
        return WebSocketTransport(f"{host}:{port}", token=token, patience_s=0.0)

    yield connect
    for server in servers:
        server.shutdown()


def ask(transport: WebSocketTransport) -> Any:
    try:
        transport.send([AbortEpisode("e")])
        (reply,) = transport.receive()
        return reply
    finally:
        transport.close()


def test_a_frame_whose_connection_is_closed_is_sent_again(closing_server: Connect) -> None:
    assert ask(closing_server(1)) == Aborted("e")


def test_a_server_that_closes_the_second_connection_too_is_quoted(closing_server: Connect) -> None:
    with pytest.raises(ServerUnavailable, match=r"tried 2 times; .*1011 .*see its log"):
        ask(closing_server(2))


def test_a_handshake_that_is_refused_says_why(closing_server: Connect) -> None:
    """The server sends the refusal's text together with its headers."""
    with pytest.raises(ServerUnavailable, match="it answered 401: none came"):
        ask(closing_server(0, token=""))


class HttpAlone(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"


def test_a_server_that_speaks_only_http_is_named_in_the_websocket_client_s_error() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), HttpAlone) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        transport = WebSocketTransport(f"127.0.0.1:{server.server_port}", patience_s=0.0)
        with pytest.raises(ServerUnavailable, match=r"501 to GET /v1/ws, .* transport='http'"):
            ask(transport)
        server.shutdown()


@pytest.fixture
def limited(closing_server: Connect, monkeypatch: pytest.MonkeyPatch) -> WebSocketTransport:
    """A transport to a server that takes messages of at most 100 bytes."""
    transport = closing_server(0)
    agents = {"a": AgentInfo("default", Discrete(2), Discrete(2))}
    spec = ServerSpec(1, "s", "PPO", agents, max_episodes=1, max_message_bytes=100)
    monkeypatch.setattr(transport, "_get_spec", lambda outage: spec)
    transport.fetch_spec()
    return transport


def test_an_answer_longer_than_its_spec_allows_is_not_read(
    limited: WebSocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = answer_bytes(limited.fetch_spec())
    monkeypatch.setattr(f"{__name__}.BatchReply", lambda replies: Aborted("x" * (limit + 1)))
    with pytest.raises(ServerUnavailable, match=rf"exceeds limit of {limit} bytes"):
        ask(limited)


def test_a_token_may_end_with_the_newline_of_its_file() -> None:
    for kind in (WebSocketTransport, HttpTransport):
        assert kind("127.0.0.1:9", token="secret\n")._headers == {"Authorization": "Bearer secret"}


def test_a_text_that_is_no_address_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"server 9900: expected its address, such as '127"):
        PolicyClient(9900)  # type: ignore[arg-type]


def test_a_token_does_not_go_in_clear_text_where_tls_is_asked_for() -> None:
    for address in ("https://somewhere:443", "wss://somewhere:443"):
        with pytest.raises(ValueError, match=r"no TLS.*transport=\"http\""):
            WebSocketTransport(address, token="secret")
    assert HttpTransport("https://somewhere:443", token="secret").url == "https://somewhere:443"


def test_a_refusal_that_nobody_took_is_not_the_next_answer(limited: WebSocketTransport) -> None:
    # Then the caller is interrupted, by Ctrl-C, say.
    limited.send([AbortEpisode("long", "x" * 200)])
    assert ask(limited) == Aborted("e")


def test_an_answer_that_nobody_took_is_not_the_next_answer(closing_server: Connect) -> None:
    transport = closing_server(0)
    transport.send([AbortEpisode("early")])  # then the caller is interrupted by Ctrl-C
    assert ask(transport) == Aborted("e")
