"""The servers of one client: each has its frame before any answer is awaited."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from muxrl.client.errors import AssignmentError, EpisodeAborted, ServerUnavailable, failure_of
from muxrl.client.joint_episode import JointEpisode
from muxrl.client.local_transport import InferenceModes
from muxrl.client.outbox import Outbox
from muxrl.client.transport import Transport
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import (
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    Refused,
    ServerSpec,
    StartEpisode,
    StepRows,
)
from muxrl.protocol.rows import Lineup, singles

logger = logging.getLogger(__name__)

_ABORT_PATIENCE_S = 5.0
"""Servers are waited for no longer than this, all together, to close an episode early: what they
do not hear of expires there by itself."""


class Servers:
    """Sends and hears for a client; which of its episodes are open is the client's to know."""

    def __init__(self) -> None:
        self.transports: dict[str, Transport] = {}
        self.specs: dict[str, ServerSpec] = {}
        self._owed: dict[str, list[AnyItem]] = {}
        """Aborts for servers that were lost, until they are spoken to again."""

    def join(self, name: str | None, transport: Transport, inference: InferenceModes) -> None:
        """Adds a server.

        Args:
            name: what its user calls it; None: as it calls itself.
            transport: to it.
            inference: who chooses its actions.

        Raises:
            AssignmentError: it calls itself otherwise, or another one has its id.
            ServerUnavailable: it cannot be reached.
        """
        spec = transport.fetch_spec()
        server_id = spec.server_id
        transport = inference.transport_to(server_id, transport)
        if name is not None and name != server_id:
            raise AssignmentError(
                f"the server named {name!r} here calls itself {server_id!r}; are two addresses "
                "mixed up?"
            )
        if server_id in self.specs:
            raise AssignmentError(
                f"two addresses lead to server {server_id!r}; each server needs a port of its own"
            )
        self.transports[server_id] = transport
        self.specs[server_id] = spec

    def say_connected(self, addresses: Sequence[str]) -> None:
        """Logs who is there; where logging is not set up, a person sees it on standard error."""
        if not addresses:  # ready transports, of somebody who knows
            return
        names: list[str] = []
        for server_id, spec in self.specs.items():
            if spec.algorithm == "GATEWAY":  # its policies' names begin with their server's
                behind = (agent.policy_id.partition("/")[0] for agent in spec.agents.values())
                names += dict.fromkeys(behind)
            else:
                names.append(server_id)
        number = "server" if len(names) == 1 else f"{len(names)} servers:"
        story = f"connected to {', '.join(addresses)}, {number} {', '.join(names)}"
        logger.info(story)
        if not logger.hasHandlers():
            sys.stderr.write(f"{story}\n")

    def ask(self, outbox: Outbox) -> tuple[dict[str, EpisodeAborted], dict[str, ServerUnavailable]]:
        """Sends every server its frame, then takes in all answers.

        Returns:
            Why episodes cannot go on, by id, and the servers that do not answer.
        """
        lost: dict[str, ServerUnavailable] = {}
        for server_id, items in outbox.items.items():
            try:
                if server_id in outbox.rows:
                    rows = outbox.rows[server_id][1]
                    items = [*items, *self._rows_for(server_id, rows)]
                self.transports[server_id].send(items)
            except ServerUnavailable as error:
                lost[server_id] = error
        failures: dict[str, EpisodeAborted] = {}
        for server_id in outbox.items:
            if server_id in lost:
                continue
            try:
                # Where one is lost, no patience is left for others.
                replies = self.transports[server_id].receive(0.0 if lost else None)
                self._hear(server_id, outbox, replies, failures)
            except ServerUnavailable as error:
                lost[server_id] = error
        return failures, lost

    def _hear(
        self,
        server_id: str,
        outbox: Outbox,
        replies: Sequence[Any],
        failures: dict[str, EpisodeAborted],
    ) -> None:
        owners = outbox.owners[server_id]
        if server_id in outbox.rows:
            replies = self._hear_rows(server_id, outbox, replies, failures)
        if len(replies) == 1 and isinstance(replies[0], Refused):  # perhaps the frame as a whole
            replies = list(replies) * len(owners)
        if len(replies) != len(owners):
            raise ServerUnavailable(
                f"server {server_id!r} answered {len(owners)} items with {len(replies)} replies",
                server_id=server_id,
            )
        for episode, item, reply in zip(owners, outbox.items[server_id], replies, strict=True):
            if not _is_answer(item, reply):
                self.transports[server_id].close()  # what else comes on it is of others, too
                raise ServerUnavailable(
                    f"server {server_id!r} answered {item} with {reply}, which is of another "
                    "episode or step; does something else use this connection?",
                    server_id=server_id,
                )
            if isinstance(reply, Refused):
                failures.setdefault(
                    episode.episode_id, failure_of(server_id, episode.episode_id, reply)
                )
                if isinstance(item, StartEpisode):
                    episode.leave(server_id)
            else:
                episode.hear(server_id, reply)

    def _rows_for(self, server_id: str, rows: StepRows) -> Sequence[AnyItem]:
        """Returns rows as a server takes them: some take single steps only."""
        if getattr(self.transports[server_id], "takes_rows", False):
            return [rows]
        spec = self.specs[server_id]
        return singles(Lineup(tuple(rows.agents) or tuple(spec.agents), spec.agents), rows)

    def _hear_rows(
        self,
        server_id: str,
        outbox: Outbox,
        replies: Sequence[Any],
        failures: dict[str, EpisodeAborted],
    ) -> Sequence[Any]:
        """Takes in the answer to rows, at the end of the replies; returns the others.

        Raises:
            ServerUnavailable: it is no answer to them.
        """
        owner, rows = outbox.rows[server_id]
        num_others = len(outbox.owners[server_id])
        others, own = replies[:num_others], replies[num_others:]
        if len(replies) == 1 and isinstance(replies[0], Refused):  # the frame as a whole, or all
            others, own = replies[: min(1, num_others)], [replies[0]] * len(rows.episode_ids)
        if len(own) == 1 and isinstance(own[0], Refused):
            own = [own[0]] * len(rows.episode_ids)
        reply = own[0] if len(own) == 1 and isinstance(own[0], ActionRows) else None
        try:
            refusals = owner.hear_rows(server_id, reply or ActionRows(replies=list(own)))
        except MalformedMessage as error:
            raise ServerUnavailable(
                f"server {server_id!r} answered rows of steps with what is no answer: {error}",
                server_id=server_id,
            ) from None
        for row, refused in refusals.items():
            episode_id = rows.episode_ids[row]
            failures.setdefault(episode_id, failure_of(server_id, episode_id, refused))
        return others

    # --- aborts -------------------------------------------------------------------------

    def abort(
        self, episodes: Sequence[JointEpisode], reason: str, without: Collection[str] = ()
    ) -> None:
        """Closes episodes on all servers; on those that are lost when they are spoken to again."""
        aborts: dict[str, list[AnyItem]] = {}
        for episode in episodes:
            for server_id, item in episode.abort(reason[:500]).items():
                whose = self._owed if server_id in without else aborts
                whose.setdefault(server_id, []).append(item)
        self._send_aborts(aborts)

    def send_owed(self, server_ids: Collection[str]) -> None:
        """Sends those of these servers that were lost what they have missed."""
        for server_id in self._owed.keys() & set(server_ids) if self._owed else ():
            self._send_aborts({server_id: self._owed.pop(server_id)})

    def _send_aborts(self, aborts: Mapping[str, list[AnyItem]]) -> None:
        """Sends one message a server, all before any answer is awaited; raises nothing."""
        calls: tuple[Callable[[str], object], ...] = (
            lambda server_id: self.transports[server_id].send(aborts[server_id]),
            lambda server_id: self.transports[server_id].receive(_ABORT_PATIENCE_S),
        )
        reached = list(aborts)
        for call in calls:
            for server_id in list(reached):
                try:
                    call(server_id)
                except ServerUnavailable as error:
                    reached.remove(server_id)
                    self._owed.setdefault(server_id, []).extend(aborts[server_id])
                    logger.warning("episodes could not be aborted: %s", error)


def _is_answer(item: AnyItem, reply: AnyReply) -> bool:
    """Whether a reply is to this item; a refusal without an episode is of a whole frame."""
    if reply.episode_id != item.episode_id:
        return isinstance(reply, Refused) and not reply.episode_id
    return type(reply) is not Actions or reply.t == getattr(item, "t", None)


def server_of_agents(specs: Mapping[str, ServerSpec]) -> dict[str, str]:
    """Returns agent id to server id.

    Raises:
        AssignmentError: two servers have the same agent.
    """
    server_of: dict[str, str] = {}
    for server_id, spec in specs.items():
        for agent_id in spec.agents:
            other = server_of.setdefault(agent_id, server_id)
            if other != server_id:
                raise AssignmentError(
                    f"agent {agent_id!r} belongs to two servers, {other!r} and {server_id!r}"
                )
    return server_of
