"""The server's WebSocket without a network: the client half of `websockets` talks to it in
memory."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from muxrl.protocol.codec import decode_batch_reply, encode, encode_json
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Batch,
    ServerSpec,
    Status,
)
from muxrl.servers.network.front import Answered, Front
from muxrl.servers.network.websocket import WebSocketConnection

MAX_BYTES = 1000


class Alarms:
    """Stands for the event loop's timers: a test makes them ring."""

    def __init__(self) -> None:
        self.set: list[Any] = []

    def call_later(self, delay_s: float, call: Any) -> Any:
        self.set.append(call)
        return SimpleNamespace(cancel=lambda: self.set.remove(call))

    def ring(self) -> None:
        for call in list(self.set):
            call()


@pytest.fixture(autouse=True)
def alarms(monkeypatch: pytest.MonkeyPatch) -> Alarms:
    alarms = Alarms()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: alarms)
    return alarms


class HoldingApp(Front):
    """An app that holds its answers until a test lets them go, or answers at once."""

    def __init__(self, *, holds: bool) -> None:
        spec = ServerSpec(1, "held", "PPO", {}, max_episodes=8, max_message_bytes=MAX_BYTES)
        super().__init__(spec, "127.0.0.1:9900", token="key")
        self.asked: list[str] = []
        self.held: list[tuple[list[AnyItem], Answered]] = []
        self.were_alone: list[bool] = []
        self.action: object = None
        self.is_broken = False
        self._holds = holds

    def status(self) -> Status:
        raise NotImplementedError  # nobody asks for the status here

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        if self.is_broken:
            raise ArithmeticError("no such luck")
        self.asked += [item.episode_id for item in items]
        self.were_alone.append(is_alone)
        self.held.append((items, reply))
        if not self._holds:
            self.let_go()

    def let_go(self) -> None:
        items, reply = self.held.pop(0)
        if self.action is None:
            reply([Aborted(item.episode_id) for item in items])
        else:
            reply([Actions(item.episode_id, 0, {"a": self.action}, 0) for item in items])


class Wire(asyncio.Transport):
    """A transport that keeps what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reads = True
        self.closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Talk:
    """A client and its connection to a server."""

    def __init__(
        self, app: HoldingApp, *, path: str = "/v1/ws", token: str = "key", text: bool = False
    ) -> None:
        self.wire = Wire()
        self.connections: set[Any] = set()
        self.server = WebSocketConnection(
            app,
            server_state=cast(Any, SimpleNamespace(connections=self.connections)),
        )
        self.client = ClientProtocol(parse_uri(f"ws://nowhere{path}"))
        self.is_text = text
        self.server.connection_made(self.wire)
        request = self.client.connect()
        request.headers["Authorization"] = f"Bearer {token}"
        self.client.send_request(request)
        self.carry()
        self.hear()

    def carry(self) -> None:
        """Sends the server all that the client has written, in one piece."""
        self.server.data_received(b"".join(self.client.data_to_send()))

    def tell(self, *episode_ids: str) -> None:
        """Sends one message."""
        self.say(*episode_ids)
        self.carry()

    def say(self, *episode_ids: str) -> None:
        """Has the client write one message, which `carry` sends."""
        batch = Batch([AbortEpisode(episode_id) for episode_id in episode_ids])
        if self.is_text:
            self.client.send_text(encode_json(batch))
        else:
            self.client.send_binary(encode(batch))

    def hear(self) -> list[Frame]:
        """Gives the client what the server wrote; returns the frames in it."""
        written, self.wire.written = self.wire.written, []
        for data in written:
            self.client.receive_data(data)
        return [event for event in self.client.events_received() if isinstance(event, Frame)]

    def closed_with(self) -> Any:
        """Returns the frame with which the server has closed the connection."""
        self.hear()
        assert self.client.close_rcvd is not None
        return self.client.close_rcvd

    def answers(self) -> list[list[str]]:
        """Returns the episodes in each answer."""
        return [[r.episode_id for r in replies(frame)] for frame in self.hear()]


def replies(frame: Frame) -> list[AnyReply]:
    data = bytes(frame.data)
    return decode_batch_reply(data.decode() if frame.opcode is Opcode.TEXT else data).replies


@pytest.mark.parametrize("text", [False, True])
def test_a_message_is_answered_before_the_call_returns(text: bool) -> None:
    talk = Talk(HoldingApp(holds=False), text=text)
    talk.tell("a", "b")
    assert len(talk.wire.written) == 1, "one write, or the other end would wait for the rest"
    (frame,) = talk.hear()
    assert frame.opcode is (Opcode.TEXT if text else Opcode.BINARY)
    assert [reply.episode_id for reply in replies(frame)] == ["a", "b"]


def test_answers_come_in_the_order_of_the_messages() -> None:
    app = HoldingApp(holds=True)
    talk = Talk(app)
    talk.tell("first")
    assert talk.wire.reads, "a client that waits for its answer is never paused"
    talk.say("second")
    talk.tell("third")
    assert app.asked == ["first"], "the first waits at the gate, and the others behind it"
    assert not talk.wire.reads
    app.let_go()
    assert app.asked == ["first", "second"]
    app.let_go()
    app.let_go()
    assert talk.answers() == [["first"], ["second"], ["third"]]
    assert talk.wire.reads


def test_a_message_is_measured_until_its_answer_is_sent() -> None:
    app = HoldingApp(holds=True)
    talk = Talk(app)
    talk.tell("first")
    assert sum(app.exchanges.counts) == 0
    time.sleep(0.02)
    app.let_go()
    talk.tell("second")
    app.let_go()
    assert sum(app.exchanges.counts) == 2
    assert 0.02 < app.exchanges.sum_s < 5.0
    talk.tell("third")
    talk.server.connection_lost(None)
    app.let_go()
    assert sum(app.exchanges.counts) == 2, "nobody was there for the third answer"


@pytest.mark.parametrize("text", [False, True])
def test_thousands_of_messages_in_one_piece_are_no_flood(text: bool) -> None:
    talk = Talk(HoldingApp(holds=False), text=text)
    names = [str(i) for i in range(3000)]
    for name in names:
        talk.say(name)
    talk.carry()
    assert talk.answers() == [[name] for name in names]


def test_a_message_in_fragments_with_a_ping_in_between() -> None:
    talk = Talk(HoldingApp(holds=False))
    data = encode(Batch([AbortEpisode("a")]))
    talk.client.send_binary(data[:5], fin=False)
    talk.carry()
    talk.client.send_ping(b"there?")
    talk.carry()
    (pong,) = talk.hear()
    assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"there?")
    talk.client.send_continuation(data[5:], fin=True)
    talk.carry()
    assert talk.answers() == [["a"]]


@pytest.mark.parametrize("whole", [0, 2], ids=["the first", "after whole ones"])
@pytest.mark.parametrize("is_last", [True, False], ids=["half a frame", "half a message"])
def test_half_a_message_is_given_up(alarms: Alarms, is_last: bool, whole: int) -> None:
    """A message that is not completed in time is given up, or it would hold its connection for
    ever."""
    app = HoldingApp(holds=True)
    talk = Talk(app)
    for _ in range(whole):
        talk.say("a")
    talk.client.send_binary(b"x" * 100, fin=is_last)
    half = b"".join(talk.client.data_to_send())
    talk.server.data_received(half[:-50] if is_last else half)
    if whole:
        assert not alarms.set, "while it is not read from, it cannot go on"
        app.let_go()
    if is_last:
        talk.server.data_received(half[-50:-49])
    assert len(alarms.set) == 1, "a byte now and then gives it no more time"
    alarms.ring()
    assert "not complete" in talk.closed_with().reason
    assert talk.wire.closed
    talk.server.connection_lost(None)
    assert not talk.connections


def test_a_complete_message_sets_no_deadline(alarms: Alarms) -> None:
    talk = Talk(HoldingApp(holds=False))
    for _ in range(3):
        talk.say("a")
        frame = b"".join(talk.client.data_to_send())
        talk.server.data_received(frame[:10])
        assert len(alarms.set) == 1
        talk.server.data_received(frame[10:])
        assert not alarms.set


def test_a_client_that_does_not_read_is_not_answered_any_more() -> None:
    app = HoldingApp(holds=False)
    talk = Talk(app)
    talk.server.pause_writing()
    talk.tell("a")
    assert (app.asked, talk.wire.reads) == ([], False)
    talk.server.resume_writing()
    assert talk.answers() == [["a"]]
    assert talk.wire.reads


def test_a_malformed_message_is_refused_and_the_connection_goes_on() -> None:
    app = HoldingApp(holds=False)
    talk = Talk(app)
    talk.client.send_binary(b"\xc1")
    talk.tell("a")
    refused, answered = talk.hear()
    (refusal,) = replies(refused)
    assert "not a batch" in cast(Any, refusal).message
    assert [reply.episode_id for reply in replies(answered)] == ["a"]
    assert app.refusals.by_code.total() == 1


@pytest.mark.parametrize(
    ("opcode", "data", "code"),
    [(Opcode.TEXT, b"\xff\xfe", 1007), (Opcode.BINARY, bytes(MAX_BYTES + 1), 1009)],
    ids=["not UTF-8", "over the limit"],
)
def test_a_breach_of_the_protocol_ends_the_connection(
    opcode: Opcode, data: bytes, code: int
) -> None:
    talk = Talk(HoldingApp(holds=False))
    talk.client.send_frame(Frame(opcode, data))
    talk.carry()
    assert talk.closed_with().code == code
    assert talk.wire.closed


@pytest.mark.parametrize(
    ("path", "token", "code"), [("/v1/ws", "wrong", 401), ("/v2/ws", "key", 404)]
)
def test_a_refused_handshake_has_the_reason(path: str, token: str, code: int) -> None:
    app = HoldingApp(holds=False)
    talk = Talk(app, path=path, token=token)
    assert isinstance(talk.client.handshake_exc, InvalidStatus)
    response = talk.client.handshake_exc.response
    assert response.status_code == code
    assert response.headers["Content-Type"] == "application/json"
    assert json.loads(bytes(response.body or b""))["code"] == code
    assert (talk.wire.closed, app.refusals.by_code.total(), app.num_connections) == (True, 1, 0)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_client_that_has_gone_gets_no_answer(says_goodbye: bool) -> None:
    app = HoldingApp(holds=True)
    talk = Talk(app)
    talk.say("a")
    talk.tell("b")
    talk.wire.closed = True
    if says_goodbye:
        talk.server.eof_received()
    talk.server.connection_lost(None if says_goodbye else ConnectionResetError())
    app.let_go()
    assert talk.wire.written == []
    assert app.asked == ["a"], "and what it asked beside that is not computed"
    assert (app.num_connections, talk.connections) == (0, set())


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_an_answer_that_cannot_travel_ends_its_connection_and_raises_nothing(
    waits: bool, text: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = HoldingApp(holds=waits)
    app.action = object()
    talk = Talk(app, text=text)
    talk.say("a")
    talk.tell("b")
    if waits:
        assert not talk.wire.closed
        app.let_go()
    check_that_it_broke_off(talk)
    assert app.asked == ["a"]
    assert "TypeError: a object cannot travel" in caplog.text


def test_an_app_that_raises_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    app = HoldingApp(holds=False)
    talk = Talk(app)
    talk.server.pause_writing()
    talk.tell("a")
    app.is_broken = True
    # Raises outside of a read: for an error in a read the event loop would end the connection.
    talk.server.resume_writing()
    check_that_it_broke_off(talk)
    assert "ArithmeticError: no such luck" in caplog.text


def check_that_it_broke_off(talk: Talk) -> None:
    assert talk.hear()[0].opcode is Opcode.CLOSE
    assert talk.closed_with().code == 1011
    assert talk.wire.closed


def test_fragments_without_content_are_not_collected() -> None:
    talk = Talk(HoldingApp(holds=False))
    talk.client.send_binary(b"", fin=False)
    for _ in range(1000):
        talk.client.send_continuation(b"", fin=False)
    talk.carry()
    assert len(talk.server._fragments._partial) == 0
    talk.client.send_continuation(encode(Batch([AbortEpisode("e")])), fin=True)
    talk.carry()
    (answer,) = talk.hear()
    assert decode_batch_reply(bytes(answer.data)).replies == [Aborted("e")]


@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG, Opcode.CONT])
def test_a_flood_of_frames_that_are_no_messages_ends_the_connection(
    kind: Opcode, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("muxrl.servers.network.websocket.time.monotonic", lambda: now[0])
    app = HoldingApp(holds=False)
    talk = Talk(app)
    is_last = kind is not Opcode.CONT
    if not is_last:
        talk.client.send_binary(b"", fin=False)
    for _ in range(3):  # as many as are allowed in each second
        now[0] += 1.0
        for _ in range(1_990):
            talk.client.send_frame(Frame(kind, b"", is_last))
        talk.carry()
        talk.hear()
        assert not talk.wire.closed
    for _ in range(50_000):
        talk.client.send_frame(Frame(kind, b"", is_last))
    parsed: list[bytes] = []
    monkeypatch.setattr(talk.server, "_feed", parsed.append)
    talk.carry()
    assert len(parsed) <= 2_000  # it parses no more of them than it allows
    assert talk.closed_with().code == 1008
    assert "2000 pings, pongs and short fragments" in talk.client.close_rcvd.reason
    assert talk.wire.closed


def test_a_frame_is_alone_while_there_is_one_connection() -> None:
    app = HoldingApp(holds=False)
    first = Talk(app)
    first.tell("a")
    second = Talk(app)
    second.tell("b")
    second.client.send_close()
    second.carry()
    second.server.connection_lost(None)
    first.tell("c")
    assert app.were_alone == [True, False, True]


def test_a_server_that_stops_closes_with_the_reason() -> None:
    talk = Talk(HoldingApp(holds=False))
    talk.server.shutdown()
    assert talk.closed_with().code == 1012
    assert talk.client.state is State.CLOSING
    assert talk.wire.closed
