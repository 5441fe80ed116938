"""WebSocket with one msgpack frame per message: the default transport.

It uses the sans-I/O half of `websockets` over a plain blocking socket, with a short cut for whole
binary messages (`muxrl.protocol.websocket_frames`). The library's own blocking client reads in a
second thread, and handing every answer from thread to thread costs as much as the round trip
itself.
"""

from __future__ import annotations

import socket
from collections import deque
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, PayloadTooBig
from websockets.protocol import OPEN, State
from websockets.uri import parse_uri

from muxrl.client.network_transport import Broken, NetworkTransport, reason
from muxrl.protocol.codec import encode_batch
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.message_sizes import answer_bytes
from muxrl.protocol.messages import AnyItem, Batch
from muxrl.protocol.websocket_frames import Fragments, FrameCutter, binary_frame

_READ_BYTES = 1 << 16
_END_OF_HEAD = b"\r\n\r\n"
_NO_WEBSOCKET = (404, 405, 501)
"""Status codes of servers that have no WebSocket route."""
_MAX_ANSWER_BYTES = 64 << 20
"""Longest answer while the server's spec, which gives the bound, has not been fetched."""


class _Connection:
    """One open WebSocket over a blocking socket.

    Raises:
        Broken: the connection cannot be opened.
        InvalidStatus: the server refused the connection.
    """

    def __init__(
        self, url: str, headers: dict[str, str], timeout_s: float, max_answer_bytes: int
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        try:
            self._socket = socket.create_connection((parts.hostname, parts.port), timeout_s)
        except OSError as error:
            raise Broken(f"no connection: {reason(error)}") from None
        self._timeout_s = timeout_s
        self._fragments = Fragments()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientProtocol(parse_uri(url), max_size=max_answer_bytes)
        self._frames = FrameCutter(is_masked=False, max_bytes=max_answer_bytes)
        self._messages: deque[bytes | str] = deque()
        try:
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            self._flush()
            self._handshake()
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc
        except BaseException as error:
            self._socket.close()
            if isinstance(error, TimeoutError):
                raise Broken("it accepts connections, but does not answer: it hangs") from None
            if isinstance(error, InvalidHandshake) and not isinstance(error, InvalidStatus):
                raise Broken(f"no connection: {error}") from None
            raise

    def send(self, data: bytes, timeout_s: float) -> None:
        if self._protocol.state is not OPEN:
            raise Broken("the connection is closing")
        if timeout_s > self._timeout_s:
            self._set_timeout(timeout_s)
        self._write(binary_frame(data, is_masked=True))

    def receive(self, timeout_s: float) -> bytes | str:
        """Returns the next message.

        Raises:
            TimeoutError: nothing came within `timeout_s`.
            Broken: the connection is gone.
            MalformedMessage: the message is longer than the server's spec allows.
        """
        if timeout_s != self._timeout_s:
            self._set_timeout(timeout_s)
        while not self._messages:
            self._read()
        return self._messages.popleft()

    def close(self) -> None:
        """Sends a close frame, without waiting for its answer."""
        try:
            if self._protocol.state is OPEN:
                self._protocol.send_close()
                self._flush()
        except Broken:
            pass
        self._socket.close()

    def _set_timeout(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)  # a system call
        self._timeout_s = timeout_s

    def _handshake(self) -> None:
        """Reads the head of the answer to the request, and the body of a refusal, too."""
        head = self._receive_some()
        while _END_OF_HEAD not in head and len(head) < _READ_BYTES:
            more = self._receive_some()
            if not more:
                break
            head += more
        head, end, rest = head.partition(_END_OF_HEAD)
        self._feed(head + end)
        if self._protocol.state is OPEN:
            self._receive(rest)
            return
        if rest:
            self._feed(rest)
        while not self._protocol.handshake_exc:
            self._feed(self._receive_some())

    def _read(self) -> None:
        data = self._receive_some()
        self._receive(data)
        if not data:
            self._feed(b"")
        if self._messages:  # messages that came before a close
            return
        if not data or self._protocol.state in (State.CLOSING, State.CLOSED):
            if isinstance(self._protocol.parser_exc, PayloadTooBig):
                raise MalformedMessage(str(self._protocol.parser_exc))
            closing = self._protocol.close_rcvd
            raise Broken(
                f"the server closed the connection{f', saying {closing}' if closing else ''}"
            )

    def _receive(self, data: bytes) -> None:
        for frame in self._frames.cut(data):
            if isinstance(frame, bytes):
                self._messages.append(frame)
            else:
                self._feed(frame.data)

    def _feed(self, data: bytes) -> None:
        """Lets `websockets` parse all but whole binary messages; b"" is the end of the stream."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if (message := self._fragments.add(event)) is not None:
                self._messages.append(message)
        self._flush()

    def _receive_some(self) -> bytes:
        try:
            return self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise Broken(f"the connection broke: {error}") from None

    def _flush(self) -> None:
        """Sends what `websockets` has ready, such as answers to pings and closes."""
        for data in self._protocol.data_to_send():
            if data:
                self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Broken(f"the connection broke: {reason(error)}") from None


class WebSocketTransport(NetworkTransport):
    """A `Transport` over one WebSocket; takes the arguments of `NetworkTransport`."""

    _has_tls = False
    _connection: _Connection | None = None

    @property
    def takes_rows(self) -> bool:
        return self._spec is not None and self._spec.takes_rows

    def _encode(self, items: list[AnyItem]) -> bytes:
        return encode_batch(Batch(items))

    def _post(self, frame: bytes, timeout_s: float) -> None:
        if self._connection is None:
            url = self.url.replace("http", "ws", 1) + "/v1/ws"
            try:
                longest = _MAX_ANSWER_BYTES if self._spec is None else answer_bytes(self._spec)
                self._connection = _Connection(url, self._headers, timeout_s, longest)
            except InvalidStatus as error:
                code, body = error.response.status_code, bytes(error.response.body or b"")
                if code in _NO_WEBSOCKET:
                    raise self._unavailable(
                        f"it answered {code} to GET /v1/ws, so it has no WebSocket; a client with "
                        "transport='http' can use it, but a gateway and a run need a WebSocket"
                    ) from None
                self._checked(code, body)
                raise Broken("it opened no WebSocket") from None
        self._connection.send(frame, timeout_s + self._carry_s)

    def _await(self, timeout_s: float) -> bytes | str:
        if self._connection is None:
            raise Broken("the connection could not be opened")
        return self._connection.receive(timeout_s)
