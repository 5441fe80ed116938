"""The items of one exchange with all servers, and who receives their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from muxrl.client.episode import Episode
from muxrl.protocol.messages import AnyItem, EndEpisode, Refused

Handler = Callable[[Any, Any], Mapping[int, Refused] | None]
"""Receives an item and its reply; returns refusals by row of the item, None if there are none."""


class Outbox:
    """Collects a frame of items for each server, which may be of many episodes."""

    def __init__(self) -> None:
        self.items: dict[str, list[AnyItem]] = {}
        self.handlers: dict[str, list[Handler]] = {}
        """By server id: for each item, the function that receives its reply."""
        self.ended: list[Episode] = []
        """Episodes whose end the servers are sent."""
        self.asked: list[Callable[[], None]] = []
        """Called if the exchange is interrupted: they note that steps were not answered."""

    def add(self, server_id: str, item: AnyItem, handle: Handler) -> None:
        """Adds an item for a server."""
        items = self.items.get(server_id)
        if items is None:
            self.items[server_id], self.handlers[server_id] = [item], [handle]
        else:
            items.append(item)
            self.handlers[server_id].append(handle)

    def add_all(self, episode: Episode, items: Mapping[str, AnyItem]) -> None:
        """Adds items by server id, whose replies the episode receives."""
        for server_id, item in items.items():
            self.add(server_id, item, partial(episode.handle, server_id))

    @property
    def ends(self) -> Outbox:
        """A new outbox that has only the ends of episodes."""
        ends = Outbox()
        ends.ended = self.ended
        for server_id, items in self.items.items():
            for item, handle in zip(items, self.handlers[server_id], strict=True):
                if isinstance(item, EndEpisode):
                    ends.add(server_id, item, handle)
        return ends

    @property
    def episode_ids(self) -> set[str]:
        """The ids of all episodes that have an item."""
        items = chain.from_iterable(self.items.values())
        return set(chain.from_iterable(item.episode_ids for item in items))
