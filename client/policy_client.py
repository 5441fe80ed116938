"""The client of one server alone."""

from __future__ import annotations

from typing import Literal

from muxrl.client.local_transport import InferenceMode
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.network_transport import UPDATE_TIMEOUT_S
from muxrl.client.transport import Transport


class PolicyClient(MultiplexingClient):
    """The client of one server, as RLlib's ``PolicyClient`` was.

    Args:
        server: "host:port", "http://host:port", or a ready transport.
        token, patience_s, update_timeout_s, transport, inference_mode, update_interval_s: see
            `MultiplexingClient`.
    """

    def __init__(
        self,
        server: str | Transport,
        *,
        token: str = "",
        patience_s: float | None = None,
        update_timeout_s: float = UPDATE_TIMEOUT_S,
        transport: Literal["websocket", "http"] = "websocket",
        inference_mode: InferenceMode = "remote",
        update_interval_s: float | None = 0.0,
    ) -> None:
        super().__init__(
            [server],
            token=token,
            patience_s=patience_s,
            update_timeout_s=update_timeout_s,
            transport=transport,
            inference_mode=inference_mode,
            update_interval_s=update_interval_s,
        )
