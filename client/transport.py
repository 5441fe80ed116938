"""The interface of all transports, through which a client talks to a server.

Sending and receiving are two calls, so that every server has its message before any answer is
awaited. Implementations: `muxrl.client.websocket` (the default), `muxrl.client.http`,
`muxrl.client.random_policy` (random actions without a server), `muxrl.client.stand_in` (random
actions while a server is lost), and `muxrl.client.local_transport` (acts with the server's
networks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from muxrl.protocol.messages import AnyItem, AnyReply, ServerSpec


class Transport(Protocol):
    """One conversation with one server, for one thread only."""

    def fetch_spec(self) -> ServerSpec:
        """Returns the server's spec.

        Raises:
            ServerUnavailable: the server cannot be reached.
        """

    def send(self, items: Sequence[AnyItem]) -> None:
        """Sends a frame without waiting for the answer.

        Raises:
            ServerUnavailable: the server cannot be reached.
        """

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        """Returns the replies to the frame sent last, one for each item, in order.

        Args:
            patience_s: how long the server may be lost, counted from the sending of the frame;
                None: the transport's usual patience, counted from now.

        Raises:
            ServerUnavailable: the server is lost for good, or holds its answer back for too long.
        """

    @property
    def takes_rows(self) -> bool:
        """Whether the items of the next frame may be `StepRows`."""
        return False

    num_lost_steps: int = 0
    """Steps that were played in the server's place and may never have reached it."""

    def tell_played(self) -> None:
        """Sends the server the steps played in its place that it has not been sent yet.

        Raises:
            ServerUnavailable: the server does not answer.
        """
        return

    def give_up(self) -> None:
        """Stops waiting for a server that is lost; may be called from any thread."""
        return

    def close(self) -> None:
        """Ends the conversation; may be called again."""
        return


class Around(Transport):
    """A transport that forwards every call to another one; subclasses change some of them.

    Args:
        server: the other transport.
    """

    def __init__(self, server: Transport) -> None:
        self._server = server

    def fetch_spec(self) -> ServerSpec:
        return self._server.fetch_spec()

    @property
    def takes_rows(self) -> bool:
        return self._server.takes_rows

    def send(self, items: Sequence[AnyItem]) -> None:
        self._server.send(items)

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        return self._server.receive(patience_s)

    @property
    def num_lost_steps(self) -> int:  # type: ignore[override]
        return self._server.num_lost_steps

    def tell_played(self) -> None:
        self._server.tell_played()

    def give_up(self) -> None:
        self._server.give_up()

    def close(self) -> None:
        self._server.close()
