"""The interface between the client and a server: send items, receive their replies.

Two calls, not one, so that every server has its message before any answer is awaited.
Implementations: `muxrl.client.websocket` (the default), `muxrl.client.http`, and
`muxrl.client.random_policy` (no server at all).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from muxrl.protocol.messages import (
    AbortEpisode,
    AnyReply,
    EndEpisode,
    ServerSpec,
    StartEpisode,
    Step,
)

AnyItem = StartEpisode | Step | EndEpisode | AbortEpisode


class Transport(Protocol):
    """One conversation with one server, for one thread only."""

    def fetch_spec(self) -> ServerSpec:
        """Returns the server's spec.

        Raises:
            ServerUnavailable: it cannot be reached.
        """

    def send(self, items: Sequence[AnyItem]) -> None:
        """Sends a frame without waiting for the answer.

        Raises:
            ServerUnavailable: it cannot be reached.
        """

    def receive(self) -> list[AnyReply]:
        """Returns the replies to the frame sent last, one for each item, in order.

        Raises:
            ServerUnavailable: no answer came in time, or the connection is lost for good.
        """

    def close(self) -> None:
        """Ends the conversation; may be called again."""


def base_url(address: str) -> str:
    """Returns "http://host:port" for "host:port", "http://host:port/" and the like.

    Raises:
        ValueError: `address` has no host or no port.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    scheme = {"": "http", "ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if not parts.hostname or parts.port is None or scheme not in ("http", "https"):
        raise ValueError(f"a server's address is HOST:PORT or http://HOST:PORT, got {address!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{parts.port}"
