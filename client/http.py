"""HTTP/1.1 with JSON: a transport for networks that let only HTTP through.

Steps go over the standard library's connection: it sends without waiting for the answer, and its
socket can be waited on again after a time-out. `requests` can do neither; `NetworkTransport` uses
it to fetch spec and status.
"""

from __future__ import annotations

import http.client
import selectors
from urllib.parse import urlsplit

from muxrl.client.network_transport import Broken, NetworkTransport, reason
from muxrl.protocol.codec import decode_json, encode_batch, encode_json
from muxrl.protocol.errors import MalformedMessage, MessageTooLarge
from muxrl.protocol.messages import Actions, AnyItem, AnyReply, Batch, BatchReply, Refused
from muxrl.protocol.values import Mismatch, conform

_CONNECTIONS: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}
_NETWORK_ERRORS = (OSError, http.client.HTTPException)


class HttpTransport(NetworkTransport):
    """A `Transport` over one keep-alive connection; takes the arguments of `NetworkTransport`."""

    _connection: http.client.HTTPConnection | None = None

    def _encode(self, items: list[AnyItem]) -> bytes:
        return encode_batch(Batch(items), as_json=True)

    def _decode(self, answer: bytes | str) -> list[AnyReply]:
        replies = super()._decode(answer)
        agents = {} if self._spec is None else self._spec.agents
        for reply in replies:
            if isinstance(reply, Actions):  # JSON gives lists where msgpack gives arrays
                try:
                    reply.actions = {
                        agent_id: conform(agents[agent_id].action_space, action)
                        if agent_id in agents
                        else action
                        for agent_id, action in reply.actions.items()
                    }
                except Mismatch as error:
                    raise MalformedMessage(f"an action is not in its space: {error}") from None
        return replies

    def _post(self, frame: bytes, timeout_s: float) -> None:
        if self._connection is None:
            parts = urlsplit(self.url)
            assert parts.hostname is not None
            kind = _CONNECTIONS[parts.scheme]
            self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            if self._connection.sock is None:
                self._connection.connect()
            self._connection.sock.settimeout(timeout_s + self._carry_s)
            self._connection.request("POST", "/v1/step", frame, headers)
        except _NETWORK_ERRORS as error:
            raise Broken(f"no connection: {reason(error)}") from None

    def _await(self, timeout_s: float) -> str:
        connection = self._connection
        if connection is None or connection.sock is None:
            raise Broken("the connection could not be opened")
        # After a time-out a socket can be waited on again, a response cannot.
        with selectors.DefaultSelector() as selector:
            selector.register(connection.sock, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TimeoutError
        try:
            response = connection.getresponse()
            body = response.read()
        except _NETWORK_ERRORS as error:
            raise Broken(f"the connection broke: {reason(error)}") from None
        if not body and not response.getheader("Content-Length"):
            raise Broken("the connection broke before the head of an answer was complete")
        if response.status in (MalformedMessage.code, MessageTooLarge.code):
            try:  # only the frame is refused: no reason to give up the server
                return encode_json(BatchReply([decode_json(body, Refused)])).decode()
            except MalformedMessage:
                pass
        # A body that is not UTF-8 is not JSON either, and fails to decode as such.
        return self._checked(response.status, body).decode(errors="replace")
