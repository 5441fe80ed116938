"""Answers items in rounds: the items of a round go to the servers together.

A round forwards at most one item of each episode, or a start and the first step of its episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muxrl.client.errors import ClientError, ServerUnavailable
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.orchestrator.gateway.episodes import Forwarded, GatewayEpisodes
from muxrl.orchestrator.gateway.wanted import Wanted
from muxrl.protocol.errors import ProtocolError
from muxrl.protocol.message_sizes import needed_items
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyItem,
    AnyReply,
    ServerSpec,
    StartEpisode,
    Step,
)
from muxrl.servers.network.front import internal_error


@dataclass
class Asked:
    """An item, and its answer once there is one; a `ProtocolError` refuses it."""

    item: AnyItem
    answer: AnyReply | ProtocolError | None = None
    steps: list[Asked] = field(default_factory=list)
    """If the item is rows that are not answered as a whole: the step of each episode."""

    @property
    def unanswered(self) -> list[Asked]:
        """The item if it has no answer yet; if it was split, its steps that have none."""
        return [one for one in self.steps or [self] if one.answer is None]


class Rounds:
    """Answers all items of a gateway. For one thread only.

    Args:
        client: the client of the servers.
        spec: the spec of the gateway.
    """

    def __init__(self, client: MultiplexingClient, spec: ServerSpec) -> None:
        self.episodes = GatewayEpisodes(spec)
        self.wanted = Wanted(client, self.episodes)
        self._max_forwarded = needed_items(spec.max_episodes)  # what a frame takes

    def answer(self, asked: Sequence[Asked], now: float) -> None:
        """Answers items of any episodes; items of the same episode are answered in order.

        Args:
            asked: the items, to which answers are added. Steps beyond `most_env_steps`, and later
                items of their episodes, stay without an answer, and have to be passed again.
            now: monotonic time.
        """
        left = [one for whole in asked for one in whole.unanswered]
        self.episodes.see((e for one in left for e in one.item.episode_ids), now)
        beyond: set[str] = set()
        while left:
            left = self._answer_round(left, beyond, now)

    def _answer_round(self, asked: Iterable[Asked], beyond: set[str], now: float) -> list[Asked]:
        """Answers the first items of each episode in one round.

        Args:
            asked: the items, in order.
            beyond: episodes whose next step has to wait; episodes that are found to wait are added.
            now: monotonic time.

        Returns:
            The items that are left for other rounds.
        """
        forwarded: dict[MultiplexingClient, list[tuple[Asked, Forwarded]]] = {}
        left: list[Asked] = []
        begun: set[str] = set()
        through: set[str] = set()  # further items of these episodes are for another round
        num_forwarded = 0
        self.episodes.begin_round()
        queue = deque(asked)
        while queue:
            one = queue.popleft()
            item, ids = one.item, one.item.episode_ids
            continues = not isinstance(item, StartEpisode | AbortEpisode)
            is_full = num_forwarded and num_forwarded + len(ids) > self._max_forwarded
            if is_full or not through.isdisjoint(ids) or not (continues or begun.isdisjoint(ids)):
                through.update(ids)
                left.append(one)
                continue
            if not beyond.isdisjoint(ids):
                beyond.update(ids)
                continue
            if isinstance(item, AbortEpisode):
                through.update(ids)
            try:
                received = self._receive(item, now)
            except ProtocolError as error:
                one.answer = error
                continue
            except Exception as error:  # noqa: BLE001, the refusal is logged; others continue
                known = [e for e in ids if e in self.episodes.open]
                self.episodes.close(known, "an error in the gateway, see its log")
                one.answer = internal_error(error)
                continue
            if isinstance(received, Forwarded):
                forwarded.setdefault(received.episodes[0].client, []).append((one, received))
                num_forwarded += len(ids)
                (through if continues else begun).update(ids)
            elif isinstance(received, list):
                one.steps = [Asked(step) for step in received]
                queue.extendleft(reversed(one.steps))
            elif received is None:
                beyond.update(ids)
            else:
                one.answer = received
        if self.episodes.aborts:
            self.episodes.abort()
        for client, of_client in forwarded.items():
            self._exchange(client, of_client)
        return left

    def _receive(self, item: AnyItem, now: float) -> Forwarded | AnyReply | list[Step] | None:
        if isinstance(item, StartEpisode):
            return self.wanted.start(item, now)
        return self.episodes.receive(item)

    def _exchange(
        self, client: MultiplexingClient, forwarded: Sequence[tuple[Asked, Forwarded]]
    ) -> None:
        """Sends a client's items of this round to its servers, and answers them."""
        ids = [episode_id for asked, _ in forwarded for episode_id in asked.item.episode_ids]
        steps = {one.episodes[0].joint.slot: one.step for _, one in forwarded if one.step}
        table, outbox = client.table, self.episodes.outboxes[client]
        failures: Mapping[str, ClientError]
        try:
            if steps:
                table.step(
                    outbox,
                    list(steps),
                    [step.observations for step in steps.values()],
                    [step.state for step in steps.values()],
                    {
                        slot: (step.logged_actions, step.logged_log_probs)
                        for slot, step in steps.items()
                        if step.logged_actions
                    },
                )
            failures = client.exchange(outbox)
        except ServerUnavailable as error:
            failures = dict.fromkeys(ids, error)
        except Exception:
            self.episodes.close(set(ids), "an error in the gateway, see its log")
            raise
        for asked, one in forwarded:
            self._note(asked, one, failures)

    def _note(
        self, asked: Asked, forwarded: Forwarded, failures: Mapping[str, ClientError]
    ) -> None:
        """Answers an item that was forwarded."""
        if failures.keys().isdisjoint(asked.item.episode_ids):
            asked.answer = forwarded.answered()
        elif forwarded.rows is not None:
            for step, single in self.episodes.singles(forwarded):
                asked.steps.append(Asked(step))
                self._note(asked.steps[-1], single, failures)
        else:
            why, is_start = failures[asked.item.episode_id], isinstance(asked.item, StartEpisode)
            asked.answer = self.episodes.lose(forwarded.episodes[0], why, is_start=is_start)
