"""The client of one server, with the verbs of RLlib's former ``PolicyClient``."""

from __future__ import annotations

from typing import Literal

from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.transport import Transport


class PolicyClient(MultiplexingClient):
    """A `MultiplexingClient` with a single server; see there.

    Args:
        server: "host:port", "http://host:port", or a ready transport.
        token: bearer token, "" for none.
        timeout_s: longest wait for one answer.
        transport: "websocket" (msgpack) or "http" (JSON).
    """

    def __init__(
        self,
        server: str | Transport,
        *,
        token: str = "",
        timeout_s: float = 120.0,
        transport: Literal["websocket", "http"] = "websocket",
    ) -> None:
        super().__init__([server], token=token, timeout_s=timeout_s, transport=transport)
