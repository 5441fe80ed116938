"""How the client talks to a server: the interface of all transports.

Sending and receiving are two calls, so that every server has its message before any answer is
awaited. Implementations: `muxrl.client.websocket` (the default), `muxrl.client.http`,
`muxrl.client.random_policy` (no server at all), `muxrl.client.stand_in` (that one in place of a
server that is lost), and `muxrl.client.local_transport` (which acts by itself).
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
            ServerUnavailable: it cannot be reached.
        """

    def send(self, items: Sequence[AnyItem]) -> None:
        """Sends a frame without waiting for the answer.

        Raises:
            ServerUnavailable: it cannot be reached.
        """

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        """Returns the replies to the frame sent last, one for each item, in order.

        Args:
            patience_s: how long the server may be lost, from when the frame was sent; None: as
                long as it usually may, from now on.

        Raises:
            ServerUnavailable: the server is lost for good, or holds its answer back for too long.
        """

    @property
    def takes_rows(self) -> bool:
        """Whether items may be `StepRows` now; asked before they are sent."""
        return False

    num_lost_steps: int = 0
    """Steps that were played in the server's place, and of which it may know nothing."""

    def tell_played(self) -> None:
        """Tells the server what was played in its place and it has not been sent yet.

        Raises:
            ServerUnavailable: it does not answer.
        """
        return

    def give_up(self) -> None:
        """Ends patience, from any thread: a server that is lost is not waited for any more."""
        return

    def close(self) -> None:
        """Ends the conversation; may be called again."""
        return


class Around(Transport):
    """A transport that hands on to another one what it does not do itself.

    Args:
        server: the other one.
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
