"""Serves a gateway on a port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from muxrl.client.multiplexer import MultiplexingClient
from muxrl.orchestrator.gateway.gateway import Gateway
from muxrl.servers.network.listening import Network

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 500
_STOP_S = 10.0


class ServedGateway:
    """A gateway that answers from `start` to `stop`.

    Args:
        connect: returns a client of the servers behind it, which the gateway owns from then on.
        host, port: where it listens; port 0: any free port.
        token: bearer token that simulations have to send; "": none.
        on_shutdown: see `Front`.
        agents_return: see `Gateway`.

    Raises:
        CannotListen: the port is taken.
        ClientError: a server cannot be reached, or two have the same agent.
    """

    def __init__(
        self,
        connect: Callable[[], MultiplexingClient],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        on_shutdown: Callable[[], None] | None = None,
        agents_return: bool = False,
    ) -> None:
        self._network = Network("the gateway", host, port)
        self.address = self._network.address
        try:
            self.gateway = Gateway(
                connect(), self.address, token, on_shutdown=on_shutdown, agents_return=agents_return
            )
        except BaseException:
            self._network.stop(0.0)
            raise

    def start(self) -> str:
        """Starts answering; returns "host:port".

        Raises:
            CannotListen: the network did not come up.
        """
        self._network.start(
            self.gateway,
            asyncio.Event().wait,
            max_connections=MAX_CONNECTIONS,
            keep_alive_s=self.gateway.spec.episode_timeout_s,
        )
        logger.info("the gateway listens on %s", self.address)
        return self.address

    def stop(self) -> bool:
        """Closes all episodes, then the network; returns whether both were done in time."""
        has_stopped = self.gateway.stop()
        return self._network.stop(_STOP_S) and has_stopped
