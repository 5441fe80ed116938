"""Keeps account of the episodes of a server or a gateway: open ones, and answers of ended ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from muxrl.protocol.episode import check_episode_id
from muxrl.protocol.errors import EpisodeGone, OutOfOrder
from muxrl.protocol.messages import Aborted, Ended

E = TypeVar("E")


class Over(NamedTuple):
    """An episode that is over: since when, its last answer, and why it is over."""

    since: float
    reply: Ended | Aborted
    reason: str


class Ledger(Generic[E]):
    """The episodes that are known, by id; each id can be used once.

    Args:
        kind: "server", or "gateway".
        server_id: for error messages; "": there is only one server.
        open_episodes: by id, a value for each open episode; the owner changes it.
        most_over: how many ended episodes to remember, the newest ones.
    """

    def __init__(
        self, kind: str, server_id: str, open_episodes: Mapping[str, E], most_over: int
    ) -> None:
        self.over: OrderedDict[str, Over] = OrderedDict()
        self._kind = kind
        self._who = f"{kind} {server_id!r}" if server_id else f"the {kind}"
        self._where = f" on {self._who}" if server_id else ""
        self._open = open_episodes
        self._most_over = most_over

    def check_new(self, episode_id: str) -> None:
        """Raises `OutOfOrder` or `MalformedMessage` unless an episode of this id may begin."""
        check_episode_id(episode_id)
        if episode_id not in self._open and episode_id not in self.over:
            return
        state = "already open" if episode_id in self._open else "already over"
        raise OutOfOrder(
            f"episode {episode_id} is {state}{self._where}; every episode needs an id of its own"
        )

    def find(self, episode_id: str) -> E:
        """Returns the value that is kept for an open episode.

        Raises:
            EpisodeGone: it is not open; the text says what is known of it.
        """
        found = self._open.get(episode_id)
        if found is not None:
            return found
        raise self.gone(episode_id)

    def gone(self, episode_id: str) -> EpisodeGone:
        """Returns the refusal of an item for an episode that is not open."""
        if episode_id in self.over:
            return EpisodeGone(
                f"episode {episode_id} is over{self._where}: {self.over[episode_id].reason}"
            )
        return EpisodeGone(
            f"{self._who} does not know episode {episode_id}: it was never started here, or the "
            f"{self._kind} was restarted since"
        )

    def answer_of(self, episode_id: str) -> Ended | Aborted | None:
        """Returns the last answer to an episode that is over; None: it is not known."""
        known = self.over.get(episode_id)
        return None if known is None else known.reply

    def end(self, episode_id: str, reply: Ended | Aborted, reason: str, now: float = 0.0) -> None:
        """Remembers that an episode is over, and forgets the oldest one if there are too many."""
        self.over[episode_id] = Over(now, reply, reason)
        if len(self.over) > self._most_over:
            self.over.popitem(last=False)

    def forget(self, before: float) -> None:
        """Forgets the episodes that were over before this time."""
        while self.over and next(iter(self.over.values())).since < before:
            self.over.popitem(last=False)
