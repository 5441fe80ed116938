"""Sends frames as bytes, with other libraries than muxrl's own client, and returns the answers."""

from __future__ import annotations

from collections.abc import Sequence

import requests
from websockets.sync.client import connect


def ask(address: str, transport: str, sent: Sequence[bytes]) -> list[bytes]:
    """Returns a server's answer to each frame, in one conversation.

    Args:
        address: host:port.
        transport: "websocket" (binary frames) or "http".
        sent: one after another.
    """
    if transport == "http":
        with requests.Session() as session:
            return [
                session.post(f"http://{address}/v1/step", data=frame, timeout=30).content
                for frame in sent
            ]
    received = []
    with connect(f"ws://{address}/v1/ws", compression=None) as socket:
        for frame in sent:
            socket.send(frame)
            answer = socket.recv(timeout=30)
            assert isinstance(answer, bytes)
            received.append(answer)
    return received
