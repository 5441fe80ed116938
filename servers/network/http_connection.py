"""An HTTP connection of a policy server, with limits on what a peer can take up.

This is uvicorn's protocol around h11, which limits a request's head. In addition, a request must be
complete by a deadline, and the number of connections is limited: a connection that is opened and
forgotten would take up a file descriptor for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from muxrl.protocol.codec import encode_json
from muxrl.protocol.messages import Refused

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request's line and headers; with a token they usually need less than 1 KiB."""
REQUEST_DEADLINE_S = 30.0
"""Longest time for a request, from the connection or its first byte to its last one: enough for 64
MiB at 20 Mbit/s."""


class HttpConnection(H11Protocol):
    """One connection, as long as it is not upgraded to a WebSocket.

    Args:
        max_connections: most connections at a time, including WebSockets.
    """

    def __init__(self, *, max_connections: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._max_connections = max_connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            limit = f"{self._max_connections} connections already (limits.max_connections)"
            self._refuse(503, f"there are {limit}")
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is self:  # else it has just become a WebSocket
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def shutdown(self) -> None:
        """Closes the connection as the server stops, without the rest of a request."""
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        else:
            super().shutdown()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._cancel_timer()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP, or a head that is too large."""
        self._refuse(400, f"{msg} Is the request's head larger than {MAX_HEAD_BYTES} bytes?")

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: Java's client offers HTTP/2 on every connection, and gets HTTP/1.1."""

    def _refuse(self, code: int, message: str) -> None:
        body = encode_json(Refused("", code=code, message=message))
        head = (
            f"HTTP/1.1 {code} {'Bad Request' if code == 400 else 'Service Unavailable'}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _watch(self) -> None:
        """Sets the deadline while a request is coming in, and cancels it once it is complete."""
        their_state = self.conn.their_state
        is_under_way = their_state is h11.SEND_BODY or (
            their_state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0]))
        )
        if not is_under_way or self.transport.is_closing():
            self._cancel_timer()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_DEADLINE_S, self._give_up)

    def _cancel_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        logger.info("a request was not complete after %g s; its connection is closed",
                    REQUEST_DEADLINE_S)  # fmt: skip
        self.transport.close()
