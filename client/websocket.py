"""WebSocket, one msgpack frame a message: the transport of the step path.

The protocol is `websockets`' sans-I/O half over a plain blocking socket. The library's own
blocking client reads in a second thread, and handing every answer from thread to thread costs
as much as the round trip itself.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from muxrl.client.errors import ServerUnavailable
from muxrl.client.http import HttpTransport, story_of
from muxrl.client.transport import AnyItem, base_url
from muxrl.protocol.codec import decode_batch_reply, encode
from muxrl.protocol.errors import MalformedMessage, MessageTooLarge
from muxrl.protocol.message_sizes import answer_bytes
from muxrl.protocol.messages import AnyReply, Batch, Refused, ServerSpec

_OPEN_TIMEOUT_S = 5.0
_READ_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 64 << 20
"""Of a server whose spec has not been fetched, which would say how long its answers can be."""


class _Broken(Exception):
    """The connection is gone."""


class _Connection:
    """One open WebSocket over a blocking socket."""

    def __init__(self, url: str, headers: dict[str, str], max_answer_bytes: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), _OPEN_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientProtocol(parse_uri(url), max_size=max_answer_bytes)
        try:
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            self._flush()
            while self._protocol.state is State.CONNECTING and not self._protocol.handshake_exc:
                self._read()
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc
        except BaseException:
            self._socket.close()
            raise
        self._protocol.events_received()  # discards the response to the handshake

    def send(self, data: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            raise _Broken("it is closing")
        self._protocol.send_binary(data)
        self._flush()

    def receive(self, timeout_s: float) -> bytes | str:
        """Returns the next message.

        Raises:
            TimeoutError: none came.
            _Broken: the connection is gone.
        """
        deadline = time.monotonic() + timeout_s
        self._socket.settimeout(timeout_s)
        parts: list[bytes] = []
        is_text = False
        while True:
            for event in self._protocol.events_received():
                if not isinstance(event, Frame) or event.opcode not in _DATA:
                    continue
                is_text = is_text or event.opcode is Opcode.TEXT
                parts.append(bytes(event.data))
                if event.fin:
                    message = parts[0] if len(parts) == 1 else b"".join(parts)
                    return message.decode() if is_text else message
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            self._read()

    def close(self) -> None:
        """Sends a close frame, without waiting for its answer."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close()
                self._flush()
        except _Broken:
            pass
        self._socket.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise _Broken(str(error)) from None
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._flush()  # answers to pings and closes
        if not data or self._protocol.state in (State.CLOSING, State.CLOSED):
            if self._protocol.parser_exc is not None:
                raise _Broken(f"its answer is refused: {self._protocol.parser_exc}")
            said = self._protocol.close_rcvd
            raise _Broken(f"the server closed it{f', saying {said}' if said else ''}")

    def _flush(self) -> None:
        try:
            for data in self._protocol.data_to_send():
                if data:
                    self._socket.sendall(data)
        except OSError as error:
            raise _Broken(str(error)) from None


_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class WebSocketTransport:
    """A `Transport` over one WebSocket, reopened once if it breaks.

    Args:
        address: "host:port" or "http://host:port".
        token: bearer token, "" for none.
        timeout_s: longest wait for an answer; a server may hold it back while it learns.
    """

    def __init__(self, address: str, *, token: str = "", timeout_s: float = 120.0) -> None:
        self._http = HttpTransport(address, token=token, timeout_s=timeout_s)
        self._url = base_url(address).replace("http", "ws", 1) + "/v1/ws"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None
        self._frame: bytes = b""
        self._refusals: list[AnyReply] = []
        self._max_bytes = 0
        self._max_answer_bytes = _MAX_ANSWER_BYTES
        self._server_id = address

    def fetch_spec(self) -> ServerSpec:
        spec = self._http.fetch_spec()
        self._server_id = spec.server_id
        self._max_bytes = spec.max_message_bytes
        self._max_answer_bytes = answer_bytes(spec)
        return spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._frame = encode(Batch(list(items)))
        size = len(self._frame)
        if self._max_bytes and size > self._max_bytes:
            # The server would close the connection, and its reason could be lost.
            self._refusals = [self._too_large(item, size) for item in items]
            return
        try:
            self._open().send(self._frame)
        except _Broken:
            self._reopen()

    def receive(self) -> list[AnyReply]:
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            return refusals
        try:
            answer = self._receive_frame()
        except _Broken:
            # Items are idempotent by (episode, t): a repeat gets the old answer.
            self._reopen()
            try:
                answer = self._receive_frame()
            except _Broken as error:
                self._drop()
                raise self._unavailable(f"the connection breaks again and again: {error}") from None
        try:
            return decode_batch_reply(answer).replies
        except MalformedMessage as error:
            raise self._unavailable(f"its answer cannot be read: {error}") from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._http.close()

    def _too_large(self, item: AnyItem, size: int) -> Refused:
        return Refused(
            item.episode_id,
            code=MessageTooLarge.code,
            message=f"a message of {size} bytes is over the limit of server {self._server_id!r}, "
            f"{self._max_bytes} bytes (limits.max_message_bytes); put fewer simulations "
            "into one message",
            expected=f"at most {self._max_bytes} bytes",
            got=f"{size} bytes",
        )

    def _receive_frame(self) -> bytes | str:
        try:
            return self._open().receive(self._timeout_s)
        except TimeoutError:
            # The answer may still come, and must not be taken for that of the next frame.
            self._drop()
            raise self._unavailable(
                f"no answer within {self._timeout_s:g} s; {self._why_silent()}"
            ) from None

    def _why_silent(self) -> str:
        try:
            status = self._http.fetch_status()
        except ServerUnavailable:
            return "nor does it answer GET /v1/status: it hangs or is gone"
        if status.problem:
            return f"its status is {status.phase}: {status.problem}"
        if status.is_waiting_for_learner:
            return (
                "it holds the simulations while an update runs (while_learning: wait); "
                "are updates that slow?"
            )
        return f"its status is {status.phase}"

    def _open(self) -> _Connection:
        if self._connection is None:
            try:
                self._connection = _Connection(self._url, self._headers, self._max_answer_bytes)
            except InvalidStatus as error:
                body = error.response.body or b""
                raise self._unavailable(
                    f"it answered {error.response.status_code}: {story_of(bytes(body))}"
                ) from None
            except (OSError, InvalidHandshake, _Broken) as error:
                raise self._unavailable(f"no connection: {error}; is it running?") from None
        return self._connection

    def _reopen(self) -> None:
        self._drop()
        try:
            self._open().send(self._frame)
        except _Broken as error:
            raise self._unavailable(f"the connection breaks again and again: {error}") from None

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unavailable(self, story: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"server {self._server_id!r} ({self._http.url}): {story}", server_id=self._server_id
        )
