"""WebSocket, the transport of the step path: a frame is answered in the call that brings it in.

ASGI would pass each frame through a queue and two tasks. Instead this is an asyncio protocol around
the sans-I/O half of `websockets`, with a short cut for whole binary messages, as on the client's
side (`muxrl.client.websocket`, `muxrl.protocol.websocket_frames`). uvicorn hands a connection over
when the client asks for the upgrade.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from typing import Any, cast

from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from muxrl.protocol.codec import encode, encode_json
from muxrl.protocol.errors import ProtocolError
from muxrl.protocol.messages import AnyReply, BatchReply, Refused
from muxrl.protocol.websocket_frames import (
    Fragments,
    FrameCutter,
    Unparsed,
    binary_frame,
    is_whole_text,
)
from muxrl.servers.network import http_connection
from muxrl.servers.network.front import Front, internal_error

logger = logging.getLogger(__name__)
_their_logger = logger.getChild("protocol")
_their_logger.setLevel(logging.WARNING)  # it would log every connection

WEBSOCKET_PATH = "/v1/ws"
_SMALL_BYTES = 1024
_MAX_SMALL_PER_S = 2_000
"""Most pings, pongs and short fragments in a second. Each takes as long to parse as a message, and
none waits for an answer: 600 kB of them would hold up all clients for seconds."""


class WebSocketConnection(asyncio.Protocol):
    """The connection of one client. Binary messages are msgpack, text is JSON; so are answers.

    Answers are sent in the order of the messages: a message that waits at the gate holds up those
    after it. A client is not read from while it has unanswered messages or does not read its
    answers.

    Args:
        app: gives the answers.
        server_state: uvicorn's, which closes these connections at shutdown.
    """

    def __init__(self, app: Front, *, server_state: ServerState, **_: Any) -> None:
        self._app = app
        self._connections = cast(set[Any], server_state.connections)
        self._protocol = ServerProtocol(max_size=app.spec.max_message_bytes, logger=_their_logger)
        self._frames = FrameCutter(is_masked=True, max_bytes=app.spec.max_message_bytes)
        self.transport: asyncio.Transport
        self._fragments = Fragments()
        self._messages: deque[bytes | str] = deque()
        self._is_answering = False
        self._asked_at = 0.0
        self._is_working = False
        self._is_writable = True
        self._is_open = False
        self._num_small = 0
        self._small_since = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    # --- the event loop's side ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._cancel_timer()
        self._messages.clear()
        # Closes the protocol even without a close frame, so that a pending answer is not written.
        self._protocol.receive_eof()
        if self._is_open:
            self._is_open = False
            self._app.num_connections -= 1

    def data_received(self, data: bytes) -> None:
        if not self._is_open:  # uvicorn hands over the whole head of the request at once
            head, end, data = data.partition(b"\r\n\r\n")
            self._feed(head + end)
        for frame in self._frames.cut(data):
            if isinstance(frame, Unparsed):
                if self._is_flood(frame.data):
                    self._protocol.fail(
                        CloseCode.POLICY_VIOLATION,
                        f"over {_MAX_SMALL_PER_S} pings, pongs and short fragments in a second",
                    )
                    self._flush()
                    break
                self._feed(frame.data)
            elif self._protocol.state is OPEN:
                self._messages.append(frame)
        if self._deadline is not None and self._messages:  # the next one has its own
            self._cancel_timer()
        self._work()

    def _is_flood(self, frame: bytes) -> bool:
        """Counts a frame that is not a whole message; returns whether there are too many."""
        if len(frame) > _SMALL_BYTES or is_whole_text(frame):
            return False
        now = time.monotonic()
        if now - self._small_since >= 1.0:
            self._small_since, self._num_small = now, 0
        self._num_small += 1
        return self._num_small > _MAX_SMALL_PER_S

    def _feed(self, data: bytes) -> None:
        """Lets `websockets` parse data other than a whole binary message."""
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            else:
                self._collect(event)
        self._flush()  # answers to pings, close frames and protocol errors

    def eof_received(self) -> None:
        self._protocol.receive_eof()

    def pause_writing(self) -> None:
        self._is_writable = False
        self._throttle()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._work()

    def shutdown(self) -> None:
        """Sends a close frame; called by uvicorn when the server stops."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.SERVICE_RESTART)
        self._flush()
        self.transport.close()

    # --- the handshake ------------------------------------------------------------------

    def _handshake(self, request: Request) -> None:
        path, _, _ = request.path.partition("?")
        if path != WEBSOCKET_PATH:
            reason = f"there is no WebSocket at {path}; it is at {WEBSOCKET_PATH}"
            self._deny(404, reason)
            return
        try:
            self._app.check_access(lambda name: next(iter(request.headers.get_all(name)), None))
        except ProtocolError as error:
            self._deny(error.code, error.message)
            return
        self._protocol.send_response(self._protocol.accept(request))
        if self._protocol.state is OPEN:
            self._is_open = True
            self._app.num_connections += 1

    def _deny(self, code: int, reason: str) -> None:
        self._app.refusals.add(code, reason, time.monotonic())
        body = encode_json(Refused("", code=code, message=reason)).decode()
        response = self._protocol.reject(code, body)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body.encode()))}
        response.headers = Headers({"Connection": "close", **headers})
        self._protocol.send_response(response)

    # --- messages -----------------------------------------------------------------------

    def _collect(self, event: object) -> None:
        try:
            message = self._fragments.add(event)
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "text that is not UTF-8")
            return
        if message is not None:
            self._messages.append(message)

    def _work(self) -> None:
        """Answers the messages that can be answered now."""
        if self._is_working:  # called from inside the loop below, which continues
            return
        self._is_working = True
        while self._messages and self._is_writable and not self._is_answering:
            self._is_answering = True
            try:
                self._answer(self._messages.popleft())
            except Exception as error:  # noqa: BLE001, the client must not wait until its timeout
                self._break_off("a frame", error)
        self._is_working = False
        self._throttle()

    def _throttle(self) -> None:
        """Reads from the client unless messages wait for their answers or are read too slowly."""
        if self.transport.is_closing():
            return
        should_read = self._is_writable and not self._messages
        if should_read != self.transport.is_reading():
            (self.transport.resume_reading if should_read else self.transport.pause_reading)()
        if not (should_read and self._frames.is_amid):
            if self._deadline is not None:
                self._cancel_timer()
        elif self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(http_connection.REQUEST_DEADLINE_S, self._give_up)

    def _cancel_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self._protocol.fail(
            CloseCode.POLICY_VIOLATION,
            f"a message was not complete after {http_connection.REQUEST_DEADLINE_S:g} s",
        )
        self._flush()
        self.transport.close()

    def _answer(self, message: bytes | str) -> None:
        self._asked_at = time.perf_counter()
        reply = functools.partial(self._reply, isinstance(message, str))
        try:
            items = self._app.messages.read(message)
        except ProtocolError as error:
            reply([self._app.refuse_message("a frame", error)])
        else:
            self._app.answer(items, reply, is_alone=self._app.num_connections == 1)

    def _reply(self, is_text: bool, replies: list[AnyReply]) -> None:
        self._is_answering = False
        if self._protocol.state is OPEN:  # else the client reconnects and asks again
            try:
                if is_text:
                    self._protocol.send_text(encode_json(BatchReply(replies)))
                    self._flush()
                else:
                    answer = encode(BatchReply(replies))
                    self.transport.write(binary_frame(answer, is_masked=False))
                self._app.exchanges.add(time.perf_counter() - self._asked_at)
            except Exception as error:  # noqa: BLE001, the user's module may return any action
                self._break_off("an answer", error)
        self._work()

    def _break_off(self, what: str, error: Exception) -> None:
        """Closes the connection after an error of the server itself, which is logged as a refusal.

        Otherwise the client would wait for an answer until its timeout. The error must not be
        raised here, since answers to other clients follow.
        """
        self._app.refuse_message(what, internal_error(error))
        self._messages.clear()
        self._protocol.fail(CloseCode.INTERNAL_ERROR, "an error in the server itself, see its log")
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            else:  # `websockets` marks the end of file in this way
                self.transport.close()
