"""What one exchange with all servers consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from muxrl.client.episode import Episode
from muxrl.protocol.messages import AnyItem, EndEpisode, Refused

Handler = Callable[[Any, Any], Mapping[int, Refused] | None]
"""Receives an item and its reply; returns what is refused of several episodes, by row."""


class Outbox:
    """What is sent in one exchange: a frame for each server, with the items of many episodes."""

    def __init__(self) -> None:
        self.items: dict[str, list[AnyItem]] = {}
        self.handlers: dict[str, list[Handler]] = {}
        """Who gets the answers to these."""
        self.ended: list[Episode] = []
        """Episodes of which the servers are sent the end."""
        self.asked: list[Callable[[], None]] = []
        """Notes that answers to steps never came."""

    def add(self, server_id: str, item: AnyItem, handle: Handler) -> None:
        """Adds an item for a server."""
        items = self.items.get(server_id)
        if items is None:
            self.items[server_id], self.handlers[server_id] = [item], [handle]
        else:
            items.append(item)
            self.handlers[server_id].append(handle)

    def add_all(self, episode: Episode, items: Mapping[str, AnyItem]) -> None:
        """Adds an item for each of some servers, by server id, whose answers an episode hears."""
        for server_id, item in items.items():
            self.add(server_id, item, partial(episode.handle, server_id))

    @property
    def ends(self) -> Outbox:
        """The ends alone."""
        ends = Outbox()
        ends.ended = self.ended
        for server_id, items in self.items.items():
            for item, handle in zip(items, self.handlers[server_id], strict=True):
                if isinstance(item, EndEpisode):
                    ends.add(server_id, item, handle)
        return ends

    @property
    def episode_ids(self) -> set[str]:
        """Of all episodes that are told of."""
        items = chain.from_iterable(self.items.values())
        return set(chain.from_iterable(item.episode_ids for item in items))
