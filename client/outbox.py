"""What one exchange with all servers consists of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from muxrl.client.joint_episode import Items, JointEpisode
from muxrl.protocol.messages import ActionRows, AnyItem, Refused, StepRows


class RowsOwner(Protocol):
    """Whoever sends steps in rows; see `VectorEpisodes`."""

    def episode_at(self, row: int) -> JointEpisode: ...

    def hear_rows(self, server_id: str, reply: ActionRows) -> Mapping[int, Refused]: ...


class Outbox:
    """What is sent in one exchange: a frame for each server, with the items of many episodes."""

    def __init__(self) -> None:
        self.items: defaultdict[str, list[AnyItem]] = defaultdict(list)
        self.owners: defaultdict[str, list[JointEpisode]] = defaultdict(list)
        self.rows: dict[str, tuple[RowsOwner, StepRows]] = {}
        """By server id, what its frame ends with."""

    def add(self, episode: JointEpisode, items: Items) -> None:
        """Adds the items of one episode."""
        for server_id, item in items.items():
            self.items[server_id].append(item)
            self.owners[server_id].append(episode)

    def add_rows(self, owner: RowsOwner, server_id: str, rows: StepRows) -> None:
        """Adds the steps of many episodes; at most once for each server."""
        self.rows[server_id] = owner, rows
        self.items[server_id] += []  # named, so that it is sent

    @property
    def episodes(self) -> dict[str, JointEpisode]:
        """All that are told of, by id."""
        told = {e.episode_id: e for owners in self.owners.values() for e in owners}
        for owner, rows in self.rows.values():
            told |= {e: owner.episode_at(row) for row, e in enumerate(rows.episode_ids)}
        return told
