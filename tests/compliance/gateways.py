"""Starts a gateway for tests, which can end its run after some episodes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from muxrl.client.multiplexer import MultiplexingClient
from muxrl.orchestrator.gateway.served import ServedGateway
from muxrl.protocol.errors import RunOver
from muxrl.servers.server import PolicyServer


@contextlib.contextmanager
def gateway_to(
    *servers: PolicyServer, num_episodes: int | None = None, token: str = ""
) -> Iterator[ServedGateway]:
    """Yields a gateway to these servers; stops it afterwards.

    Args:
        num_episodes: the run is over after so many; None: it never is.
        token: of the servers.
    """
    addresses = [server.address for server in servers]
    served = ServedGateway(lambda: MultiplexingClient(addresses, token=token))
    served.start()
    is_through = threading.Event()

    def end_run() -> None:
        while not is_through.wait(0.01):
            if served.gateway.episodes.counts.num_episodes >= (num_episodes or 0):
                served.gateway.end(RunOver("the run is over"), 10.0)
                return

    ending = threading.Thread(target=end_run)
    if num_episodes is not None:
        ending.start()
    try:
        yield served
    finally:
        is_through.set()
        if num_episodes is not None:
            ending.join()
        assert served.stop()
