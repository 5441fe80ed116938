"""Acts at random in place of a lost server, so that the other servers can go on learning."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from muxrl.client.errors import ServerLost
from muxrl.client.local_transport import LocalTransport
from muxrl.client.network_transport import NetworkTransport
from muxrl.client.random_policy import RandomTransport
from muxrl.client.transport import Around
from muxrl.protocol.errors import EpisodeGone
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    AnyItem,
    AnyReply,
    EndEpisode,
    Refused,
    ServerSpec,
    StartEpisode,
)

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class StandIn(Around):
    """A transport to a server; episodes that begin while it is lost get uniformly random actions.

    When the server is lost, `receive` raises `ServerLost` once, as other transports do, and the
    open episodes are closed on the other servers. Episodes that begin from then on are played at
    random to their ends, and the server never hears of them. Once it is back, it gets the episodes
    that begin.

    Args:
        server: the transport to the server, or one that acts in its place. Its `patience_s` says
            how long the server may be silent before it counts as lost.
        seed: of the random actions.
        start_s: how long to wait for the server at the beginning, when its spec is not known.
    """

    def __init__(
        self, server: NetworkTransport | LocalTransport, *, seed: int = 0, start_s: float = 0.0
    ) -> None:
        super().__init__(server)
        self._start_s = start_s
        self._network = server
        self._seed = seed
        self._random: RandomTransport
        self._server_id: str
        self._episodes: set[str] = set()
        """Ids of the open episodes that are played at random."""
        self._pending: list[AbortEpisode] = []
        """Aborts for the server when it is back: it may still hold these episodes open."""
        self._is_lost = threading.Event()
        self._is_closed = threading.Event()
        self._items: Sequence[AnyItem] = ()
        self._is_own: list[bool] = []
        """Whether each item is answered here; fixed once the frame is sent."""

    def plays(self, episode_id: str) -> bool:
        """Whether an open episode is played at random here."""
        return episode_id in self._episodes

    def fetch_spec(self) -> ServerSpec:
        spec = self._network.fetch_spec(self._start_s)
        self._random = RandomTransport(spec, self._seed)
        self._server_id = spec.server_id
        return spec

    @property
    def takes_rows(self) -> bool:
        """False while episodes are played here: rows could mix these with the server's."""
        is_playing = self._is_lost.is_set() or bool(self._episodes)
        return not is_playing and super().takes_rows

    def send(self, items: Sequence[AnyItem]) -> None:
        is_lost = self._is_lost.is_set()
        if is_lost:
            self._episodes.update(i.episode_id for i in items if isinstance(i, StartEpisode))
        self._items = items
        self._is_own = [is_lost or item.episode_id in self._episodes for item in items]
        theirs = [item for item, is_own in zip(items, self._is_own, strict=True) if not is_own]
        if theirs:
            self._server.send([*self._pending, *theirs])

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        received: list[AnyReply] = []
        if not all(self._is_own):
            try:
                received = self._server.receive(patience_s)
            except ServerLost:
                self._lose()
                raise
            if len(received) != len(self._pending) + self._is_own.count(False):
                return received  # the frame was refused as a whole
            received = received[len(self._pending) :]
            self._pending = []
        if not any(self._is_own):
            return received
        rest = iter(received)
        return [
            self._answer(item) if is_own else next(rest)
            for item, is_own in zip(self._items, self._is_own, strict=True)
        ]

    def tell_played(self) -> None:
        if not self._is_lost.is_set():
            self._server.tell_played()

    def close(self) -> None:
        self._is_closed.set()
        self._server.close()

    def _answer(self, item: AnyItem) -> AnyReply:
        if item.episode_id not in self._episodes:  # the episode was open on the lost server
            if isinstance(item, AbortEpisode):
                self._pending.append(item)
                return Aborted(item.episode_id)
            return Refused(
                item.episode_id,
                code=EpisodeGone.code,
                message=f"episode {item.episode_id} is over: server {self._server_id!r} was lost",
            )
        self._random.send([item])
        (reply,) = self._random.receive()
        if isinstance(item, EndEpisode | AbortEpisode):
            self._episodes.discard(item.episode_id)
        return reply

    def _lose(self) -> None:
        if self._is_lost.is_set() or self._is_closed.is_set():
            return
        self._is_lost.set()
        logger.warning("agents of server %r act at random until it is back", self._server_id)
        threading.Thread(target=self._wait_until_it_is_back, daemon=True).start()

    def _wait_until_it_is_back(self) -> None:
        while not self._is_closed.wait(_LOOK_EVERY_S):
            if self._network.is_there():
                logger.warning(
                    "server %r is back, and acts again from the next episodes on", self._server_id
                )
                self._is_lost.clear()
                return
