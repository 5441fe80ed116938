"""Rules of endpoints, transports, access and limits: all that is not about items."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus

from muxrl.orchestrator.compliance.subject import ANSWER_S, Subject, received
from muxrl.orchestrator.compliance.verdicts import Broken, Rules, Skipped, expect
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.message_sizes import needed_items
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    AnyItem,
    Batch,
    BatchReply,
    Ended,
    Health,
    Refused,
    Started,
    StartEpisode,
    Status,
)

RULES = Rules(has_items=False)
_MAX_BODY_BYTES = 16 << 20
"""Largest `max_message_bytes` that `large_messages` tries."""
_MAX_EPISODES = 4096
"""Largest `max_episodes` that is tried."""


@RULES.of("endpoints", is_needed=True)
def the_spec(server: Subject) -> None:
    """the spec has protocol version 1 and at least one agent"""
    version = server.spec.protocol_version
    expect(version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION}", version)
    expect(server.agents, "agents", "none")
    members = {member for group in server.spec.groups.values() for member in group}
    expect(members <= {*server.agents}, "groups with agents of the spec only", sorted(members))


@RULES.of("endpoints", is_needed=True)
def what_it_says_of_itself(server: Subject) -> None:
    """GET /v1/health and /v1/status say that the server is ready"""
    health = server.read(server.request("GET", "/v1/health"), Health)
    status = server.read(server.request("GET", "/v1/status"), Status)
    expect(health.status == status.phase == "ready", "ready", (health, status))
    ids = {health.server_id, status.server_id, server.spec.server_id}
    expect(len(ids) == 1, "the same server_id in spec, health and status", ids)


@RULES.of("endpoints")
def the_document(server: Subject) -> None:
    """GET /v1/openapi.json is an OpenAPI document"""
    answer = server.request("GET", "/v1/openapi.json")
    if answer.status_code == 404:
        raise Skipped("the server has none; docs/openapi.json is the document of all servers")
    document = server.read(answer, dict)
    expect("/v1/step" in document.get("paths", ()), "the path /v1/step in it", document)


@RULES.of("endpoints")
def unknown_paths_and_methods(server: Subject) -> None:
    """an unknown path is answered 404, a wrong method 405, both with a refusal as body"""
    server.refusal(server.request("GET", "/v1/nowhere"), 404)
    server.refusal(server.request("GET", "/v1/step"), 405)
    server.refusal(server.request("POST", "/v1/spec", {}), 405)


@RULES.of("endpoints")
def one_endpoint_each(server: Subject) -> None:
    """each kind of item has its endpoint, where a refusal's code is the HTTP status"""
    made = server.read(server.request("POST", "/v1/episodes"), Started)
    expect(made.episode_id, "an id that the server made", made)
    aborted = server.read(server.request("POST", f"/v1/episodes/{made.episode_id}/abort"), Aborted)
    expect(aborted.episode_id == made.episode_id, made.episode_id, aborted)
    mine = server.new_id()
    started = server.read(
        server.request("POST", "/v1/episodes", {"episode_id": mine, "mode": "eval"}), Started
    )
    expect(started.episode_id == mine, mine, started)
    ended = server.read(server.request("POST", f"/v1/episodes/{mine}/end", {"t": 0}), Ended)
    expect(ended.num_steps == 0, "0 steps", ended)
    server.refusal(server.request("POST", f"/v1/episodes/{server.new_id()}/end", {"t": 0}), 410)
    server.refusal(server.request("POST", f"/v1/episodes/{mine}/end", {}), 400)


@RULES.of("endpoints")
def keep_alive(server: Subject) -> None:
    """an HTTP connection stays open between requests"""
    parts = urlsplit(server.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=ANSWER_S)
    try:
        for _ in range(2):
            connection.request("GET", "/v1/health", headers=server.headers)
            first = connection.sock
            connection.getresponse().read()
            expect(connection.sock is first, "the connection to stay open", "it was closed")
    except (OSError, http.client.HTTPException) as error:
        raise Broken("an answer", error) from None
    finally:
        connection.close()


@RULES.of("endpoints")
def the_token(server: Subject) -> None:
    """a server with a token answers 401 to requests without it"""
    if not server.token:
        raise Skipped("no token was given to this test, or the server has none")
    for given in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        for method, path in (("GET", "/v1/spec"), ("GET", "/v1/status"), ("POST", "/v1/step")):
            server.refusal(server.request(method, path, headers=given), 401)
    _is_denied(server, {"Authorization": "Bearer wrong"}, 401)


@RULES.of("endpoints")
def no_token(server: Subject) -> None:
    """a server without a token answers only requests to a name of its own machine, and cannot
    be shut down"""
    if server.token:
        raise Skipped("the server has a token")
    server.refusal(server.request("GET", "/v1/spec", headers={"Host": "somewhere.example"}), 403)
    server.refusal(server.request("POST", "/v1/shutdown"), 401)


@RULES.of("endpoints")
def no_web_page(server: Subject) -> None:
    """requests from web pages, which have an Origin, are refused with 403"""
    origin = {"Origin": "http://127.0.0.1"}
    server.refusal(server.request("GET", "/v1/spec", headers=origin), 403)
    server.refusal(server.request("POST", "/v1/step", {"items": []}, origin), 403)
    _is_denied(server, {**server.headers, **origin}, 403)


def _is_denied(server: Subject, headers: dict[str, str], code: int) -> None:
    try:
        with server.websocket(headers):
            pass
    except Broken as broken:
        cause = broken.__cause__
        came = cause.response.status_code if isinstance(cause, InvalidStatus) else cause
        expect(came == code, f"{code} to the upgrade", came)
    else:
        raise Broken(f"{code} to the upgrade", "a WebSocket")


@RULES.of("transports")
def malformed_bodies(server: Subject) -> None:
    """a body that is no batch of items is refused with 400 and the reason"""
    step = {"type": "step", "episode_id": "e", "t": 0, "observations": {}}
    bodies = [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"items":[{"type":"jump","episode_id":"e"}]}']
    wrongs: list[dict[str, object]] = [
        {"t": "0"},
        {"rewards": [1]},
        {"observations": []},
        {"t": 0.5},
    ]
    for wrong in wrongs:
        bodies.append(json.dumps({"items": [step | wrong]}).encode())
    for body in bodies:
        refused = server.refusal(server.request("POST", "/v1/step", body), 400)
        expect(refused.message, "a message that says why", refused)


@RULES.of("transports")
def unknown_fields(server: Subject) -> None:
    """an unknown field is refused with 400, and the message names it"""
    item = {"type": "abort", "episode_id": server.new_id()}
    for body in ({"items": [item | {"colour": "green"}]}, {"items": [item], "colour": "green"}):
        refused = server.refusal(server.request("POST", "/v1/step", body), 400)
        expect("colour" in refused.message, "the field's name", refused)


@RULES.of("transports")
def text_frames(server: Subject) -> None:
    """a text frame holds JSON and is answered in JSON"""
    with server.websocket() as websocket:
        items = [{"type": t, "episode_id": server.new_id()} for t in ("start", "abort")]
        kinds = [type(reply) for reply in received(websocket, json.dumps({"items": items}))]
        expect(kinds == [Started, Aborted], "a Started, then an Aborted", kinds)


@RULES.of("transports")
def malformed_frames(server: Subject) -> None:
    """a malformed frame is refused, and the WebSocket stays open"""
    with server.websocket() as websocket:
        for frame in ("{", "", b"", b"\xc1", b"\x81\xa5items"):
            replies = received(websocket, frame)
            is_refused = [isinstance(r, Refused) and r.code == 400 for r in replies]
            expect(is_refused == [True], "one refusal with code 400", replies)
        text = json.dumps({"items": [{"type": "abort", "episode_id": server.new_id()}]})
        expect(isinstance(received(websocket, text)[0], Aborted), "aborted", "another reply")


@RULES.of("limits")
def large_messages(server: Subject) -> None:
    """a body over max_message_bytes is refused with 413; a frame over it closes the
    WebSocket with code 1009"""
    limit = server.spec.max_message_bytes
    if not 0 < limit <= _MAX_BODY_BYTES:
        raise Skipped(f"max_message_bytes is {limit}; up to {_MAX_BODY_BYTES} is tested")
    server.refusal(server.request("POST", "/v1/step", b" " * (limit + 1)), 413)
    with server.websocket() as websocket:
        try:
            websocket.send(b"\0" * (limit + 1))
            raise Broken("the WebSocket closed", websocket.recv(ANSWER_S))
        except ConnectionClosed as closed:
            # If it closes while more bytes arrive, the connection may be reset and the code lost.
            code = closed.rcvd.code if closed.rcvd else None
            expect(code in (1009, None), "close code 1009", code)


@RULES.of("limits")
def many_items(server: Subject) -> None:
    """a message may hold 3 items for each episode that may be open, and at least 64"""
    num = needed_items(server.spec.max_episodes)
    items: list[AnyItem] = [AbortEpisode(str(n)) for n in range(num + 1)]
    if not 40 * num < (server.spec.max_message_bytes or 0) <= 10 * _MAX_BODY_BYTES:
        raise Skipped(f"{num} items would exceed max_message_bytes, or need too large a message")
    server.refusal(server.request("POST", "/v1/step", Batch(items)), 413)
    replies = server.read(server.request("POST", "/v1/step", Batch(items[1:])), BatchReply).replies
    expect(len(replies) == num, f"{num} replies", len(replies))


@RULES.of("limits")
def large_heads(server: Subject) -> None:
    """request line and headers over 64 KiB are refused with 400"""
    parts = urlsplit(server.url)
    if parts.scheme == "https":
        raise Skipped("this test cannot send its request over TLS")
    head = f"GET /v1/health HTTP/1.1\r\nHost: {parts.netloc}\r\nX-Large: ".encode()
    try:
        address = (str(parts.hostname), int(parts.port or 80))
        with socket.create_connection(address, ANSWER_S) as connection:
            connection.sendall(head + b"x" * (64 << 10))  # and the head is not complete yet
            answer = connection.recv(100)
    except OSError as error:
        raise Broken("an answer", error) from None
    expect(answer.startswith(b"HTTP/1.1 400"), "400", answer)


@RULES.of("limits")
def many_episodes(server: Subject) -> None:
    """a start beyond max_episodes open episodes is refused with 429 and Retry-After"""
    limit = server.spec.max_episodes
    if not 0 < limit <= _MAX_EPISODES:
        raise Skipped(f"max_episodes is {limit}; up to {_MAX_EPISODES} is tested")
    for _ in range(0, limit, 32):
        items: list[AnyItem] = [StartEpisode(server.new_id(), "eval") for _ in range(32)]
        server.request("POST", "/v1/step", Batch(items))
    answer = server.request("POST", "/v1/episodes", {"episode_id": server.new_id()})
    server.refusal(answer, 429)
    expect("Retry-After" in answer.headers, "the header Retry-After", dict(answer.headers))


@RULES.of("limits")
def what_takes_too_long(server: Subject) -> None:
    """the time for a request and the number of connections are limited"""
    raise Skipped("not tested: a request may take 30 s, and the spec has no limit of connections")
