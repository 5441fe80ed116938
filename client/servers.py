"""Exchanges messages with the servers of a client: sends to all before it waits for any."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from muxrl.client.episode import Episode
from muxrl.client.errors import AssignmentError, EpisodeAborted, ServerUnavailable, failure_of
from muxrl.client.inference_modes import InferenceModes
from muxrl.client.outbox import Handler, Outbox
from muxrl.client.transport import Transport
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import Actions, AnyItem, AnyReply, Refused, ServerSpec

logger = logging.getLogger(__name__)

_ABORT_PATIENCE_S = 5.0
"""Longest wait for the answers of all servers together to aborts. An episode whose abort a server
does not get expires there."""


class Servers:
    """The transports to a client's servers, and their specs."""

    def __init__(self) -> None:
        self.transports: dict[str, Transport] = {}
        self.specs: dict[str, ServerSpec] = {}
        self.pending_aborts: dict[str, list[AnyItem]] = {}
        """By server id: aborts that a lost server missed, to be sent once it is back."""

    def join(self, name: str | None, transport: Transport, inference: InferenceModes) -> None:
        """Adds a server.

        Args:
            name: the id that the caller gave it; None: the server's own.
            transport: the transport to the server.
            inference: says whether the server or the client chooses actions.

        Raises:
            AssignmentError: the server's own id is another one, or is taken.
            ServerUnavailable: the server cannot be reached.
        """
        spec = transport.fetch_spec()
        server_id = spec.server_id
        transport = inference.transport_to(server_id, transport)
        problem = ""
        if name is not None and name != server_id:
            problem = (
                f"the server named {name!r} here calls itself {server_id!r}; are two addresses "
                "mixed up?"
            )
        elif server_id in self.specs:
            problem = (
                f"two addresses lead to server {server_id!r}; each server needs a port of its own"
            )
        if problem:
            transport.close()
            raise AssignmentError(problem)
        self.transports[server_id] = transport
        self.specs[server_id] = spec

    def say_connected(self, addresses: Sequence[str]) -> None:
        """Logs who is connected; without logging handlers, writes it to standard error."""
        if not addresses:  # the caller has made the transports
            return
        names: list[str] = []
        for server_id, spec in self.specs.items():
            if spec.algorithm == "GATEWAY":  # a policy's name begins with its server's id
                behind = (agent.policy_id.partition("/")[0] for agent in spec.agents.values())
                names += dict.fromkeys(behind)
            else:
                names.append(server_id)
        number = "server" if len(names) == 1 else f"{len(names)} servers:"
        text = f"connected to {', '.join(addresses)}, {number} {', '.join(names)}"
        logger.info(text)
        if not logger.hasHandlers():
            sys.stderr.write(f"{text}\n")

    def ask(self, outbox: Outbox) -> tuple[dict[str, EpisodeAborted], dict[str, ServerUnavailable]]:
        """Sends every server its frame, then receives all answers.

        Returns:
            By episode id: why the episode cannot continue. By server id: why it did not answer.
        """
        lost: dict[str, ServerUnavailable] = {}
        for server_id, items in outbox.items.items():
            try:
                self.transports[server_id].send(items)
            except ServerUnavailable as error:
                lost[server_id] = error
        failures: dict[str, EpisodeAborted] = {}
        for server_id, items in outbox.items.items():
            if server_id in lost:
                continue
            try:
                # Once a server is lost, no other one is waited for.
                replies = self.transports[server_id].receive(0.0 if lost else None)
                self._handle(server_id, items, outbox.handlers[server_id], replies, failures)
            except ServerUnavailable as error:
                lost[server_id] = error
        return failures, lost

    def _handle(
        self,
        server_id: str,
        items: Sequence[AnyItem],
        handlers: Sequence[Handler],
        replies: Sequence[AnyReply],
        failures: dict[str, EpisodeAborted],
    ) -> None:
        if len(replies) != len(items):
            if len(replies) != 1 or not isinstance(replies[0], Refused):
                raise ServerUnavailable(
                    f"server {server_id!r} answered {len(items)} items with {len(replies)} replies",
                    server_id=server_id,
                )
            replies = list(replies) * len(items)  # the frame was refused as a whole
        for i, reply in enumerate(replies):
            item, handle = items[i], handlers[i]
            if (reply.episode_id != item.episode_id or type(reply) is Actions) and not _is_answer(
                item, reply
            ):
                self.transports[server_id].close()  # its later answers would be wrong, too
                raise ServerUnavailable(
                    f"server {server_id!r} answered {item} with {reply}, which belongs to "
                    "another episode or step; does something else use this connection?",
                    server_id=server_id,
                )
            try:
                refused = handle(item, reply)
            except MalformedMessage as error:
                raise ServerUnavailable(
                    f"server {server_id!r} gave no valid answer to steps: {error}",
                    server_id=server_id,
                ) from None
            if refused:
                for row, one in refused.items():
                    episode_id = item.episode_ids[row]
                    failures.setdefault(episode_id, failure_of(server_id, episode_id, one))

    # --- aborts -------------------------------------------------------------------------

    def abort(
        self, episodes: Sequence[Episode], reason: str, without: Collection[str] = ()
    ) -> None:
        """Aborts episodes on all servers; servers in `without` get the aborts later."""
        aborts: dict[str, list[AnyItem]] = {}
        for episode in episodes:
            for server_id, item in episode.aborts(reason[:500]).items():
                whose = self.pending_aborts if server_id in without else aborts
                whose.setdefault(server_id, []).append(item)
        self._send_aborts(aborts)

    def send_pending(self, server_ids: Collection[str]) -> None:
        """Sends servers the aborts that they missed while they were lost."""
        for server_id in self.pending_aborts.keys() & set(server_ids):
            self._send_aborts({server_id: self.pending_aborts.pop(server_id)})

    def _send_aborts(self, aborts: Mapping[str, list[AnyItem]]) -> None:
        """Sends all aborts, then receives the answers; keeps those that fail, raises nothing."""
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
                    self.pending_aborts.setdefault(server_id, []).extend(aborts[server_id])
                    logger.warning("episodes could not be aborted: %s", error)


def _is_answer(item: AnyItem, reply: AnyReply) -> bool:
    """Whether a reply belongs to an item; a refusal without an episode id belongs to all items."""
    if reply.episode_id != item.episode_id:
        return isinstance(reply, Refused) and not reply.episode_id
    return type(reply) is not Actions or reply.t == getattr(item, "t", None)
