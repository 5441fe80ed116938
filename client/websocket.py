"""WebSocket, one msgpack frame a message: the carrier of the step path."""

from __future__ import annotations

from collections.abc import Sequence

from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException
from websockets.sync.client import ClientConnection, connect

from client.errors import ServerUnavailable
from client.http import HttpTransport
from client.transport import AnyItem, base_url
from protocol.codec import decode_batch_reply, encode
from protocol.messages import AnyReply, Batch, ServerSpec

_OPEN_TIMEOUT_S = 5.0


class WebSocketTransport:
    """Keeps one WebSocket to one server, and opens it again once if it breaks.

    Args:
        address: "host:port" or "http://host:port".
        token: bearer token, "" for none.
        timeout_s: longest wait for an answer. A server may hold one while it learns.
    """

    def __init__(self, address: str, *, token: str = "", timeout_s: float = 120.0) -> None:
        self._http = HttpTransport(address, token=token, timeout_s=timeout_s)
        self._url = base_url(address).replace("http", "ws", 1) + "/v1/ws"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._connection: ClientConnection | None = None
        self._frame: bytes = b""
        self._server_id = address

    def fetch_spec(self) -> ServerSpec:
        spec = self._http.fetch_spec()
        self._server_id = spec.server_id
        return spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._frame = encode(Batch(list(items)))
        try:
            self._open().send(self._frame)
        except ConnectionClosed:
            self._reopen()

    def receive(self) -> list[AnyReply]:
        try:
            answer = self._receive_frame()
        except ConnectionClosed:
            # Every item is idempotent by (episode, t): what was answered is answered alike.
            self._reopen()
            try:
                answer = self._receive_frame()
            except ConnectionClosed as error:
                raise self._unavailable(f"the connection breaks again and again: {error}") from None
        return decode_batch_reply(answer).replies

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._http.close()

    def _receive_frame(self) -> bytes | str:
        try:
            return self._open().recv(self._timeout_s)
        except TimeoutError:
            # The answer may still come, and must not be taken for the next frame's.
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

    def _open(self) -> ClientConnection:
        if self._connection is None:
            try:
                self._connection = connect(
                    self._url,
                    additional_headers=self._headers,
                    compression=None,
                    max_size=None,
                    open_timeout=_OPEN_TIMEOUT_S,
                    proxy=None,
                )
            except (OSError, InvalidHandshake, TimeoutError, WebSocketException) as error:
                raise self._unavailable(f"no connection: {error}; is it running?") from None
        return self._connection

    def _reopen(self) -> None:
        self._drop()
        try:
            self._open().send(self._frame)
        except ConnectionClosed as error:
            raise self._unavailable(f"the connection breaks again and again: {error}") from None

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close_socket()
            self._connection = None

    def _unavailable(self, story: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"server {self._server_id!r} ({self._http.url}): {story}", server_id=self._server_id
        )
