"""A transport that sends one server's actions to a second one, which learns from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from muxrl.client.transport import Around, Transport
from muxrl.protocol.messages import (
    MIN_LOG_PROB,
    Aborted,
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.rows import Layout, answers_of, layouts, singles


class Shadowed(Around):
    """A transport to a server and its shadow, which is sent training episodes with its actions.

    The shadow works while the simulation makes its next step; its answer is received before it is
    sent more. A refusal by the shadow counts as one by the server, so that both have the same
    episodes.

    Args:
        server: the transport to the server that acts.
        shadow: the transport to a server of the same agents.
    """

    def __init__(self, server: Transport, shadow: Transport) -> None:
        super().__init__(server)
        self._shadow = shadow
        self._spec: ServerSpec
        self._layout: Callable[[tuple[str, ...]], Layout]
        self._shadow_size: int | None = None
        """Length of the global state that the shadow is sent; None: it is sent none."""
        self._items: Sequence[AnyItem] = ()
        self._episodes: set[str] = set()
        """Ids of the open episodes that the shadow is sent."""
        self._sent: list[AnyItem] = []
        """The frame that the shadow has not answered yet."""
        self._refused: dict[str, Refused] = {}
        """By episode id: the shadow's refusal, until the episode's next item."""

    def fetch_spec(self) -> ServerSpec:
        self._shadow_size = self._shadow.fetch_spec().state_size
        self._spec = spec = super().fetch_spec()
        self._layout = layouts(spec.agents)
        return replace(spec, state_size=self._shadow_size) if spec.state_size is None else spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._items = items
        items = _without_state(items) if self._spec.state_size is None else items
        if self._spec.gives_log_probs:
            items = [
                replace(one, wants_log_probs=True)
                if isinstance(one, StartEpisode) and one.mode == "train"
                else one
                for one in items
            ]
        super().send(items)

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        replies = super().receive(patience_s)
        self._receive_shadow(patience_s)
        if len(replies) != len(self._items):  # the frame was refused as a whole
            return replies
        sent: list[AnyItem] = []
        for place, (item, reply) in enumerate(zip(self._items, replies, strict=True)):
            if isinstance(item, StepRows) and isinstance(reply, ActionRows):
                if any(episode_id in self._episodes for episode_id in item.episode_ids):
                    replies[place] = self._pass_rows(item, reply, sent)
            else:
                replies[place] = self._pass(item, reply, sent)
        if sent:
            self._shadow.send(_without_state(sent) if self._shadow_size is None else sent)
            self._sent = sent
        return replies

    def tell_played(self) -> None:
        super().tell_played()
        self._receive_shadow()

    def _receive_shadow(self, patience_s: float | None = None) -> None:
        sent, self._sent = self._sent, []
        if not sent:
            return
        answers = self._shadow.receive(patience_s)
        if len(answers) != len(sent):  # the frame was refused as a whole
            answers = answers * len(sent)
        for item, answer in zip(sent, answers, strict=True):
            ids = item.episode_ids
            known = answer.replies if isinstance(answer, ActionRows) else [answer] * len(ids)
            for episode_id, one in zip(ids, known, strict=False):  # replies are () if all are rows
                if isinstance(one, Refused) and episode_id in self._episodes:  # still open
                    self._refused[episode_id] = one

    def _pass(self, item: AnyItem, reply: AnyReply, sent: list[AnyItem]) -> AnyReply:
        """Adds what the shadow is sent for an item; returns the reply to the item."""
        episode_id = item.episode_id
        if isinstance(reply, Started) and isinstance(item, StartEpisode) and item.mode == "train":
            self._episodes.add(episode_id)
        if episode_id not in self._episodes:
            return reply
        refusal = self._refused.pop(episode_id, None)
        if isinstance(reply, Actions) and isinstance(item, Step):
            item = replace(
                item, logged_actions=reply.actions, logged_log_probs=_sound(reply.log_probs)
            )
        elif isinstance(reply, Ended | Aborted):
            self._episodes.discard(episode_id)
        elif isinstance(reply, Refused):
            return reply
        if refusal is not None and not isinstance(reply, Aborted):
            return refusal
        sent.append(item)
        return reply

    def _pass_rows(self, item: StepRows, reply: ActionRows, sent: list[AnyItem]) -> ActionRows:
        are_plain = not reply.replies and self._refused.keys().isdisjoint(item.episode_ids)
        if are_plain and self._shadow.takes_rows and self._episodes.issuperset(item.episode_ids):
            known = reply.log_probs
            if known is not None:
                known = np.where(known >= MIN_LOG_PROB, np.minimum(known, 0.0), np.nan)
            sent.append(replace(item, logged_actions=reply.actions, logged_log_probs=known))
            return reply
        layout = self._layout(tuple(item.agents or self._spec.agents))
        pairs = zip(singles(layout, item), answers_of(layout, item, reply), strict=True)
        passed = [self._pass(*one, sent) for one in pairs]
        if any(isinstance(one, Refused) for one in passed):
            return replace(reply, actions=[], replies=passed)
        return reply

    @property
    def num_lost_steps(self) -> int:  # type: ignore[override]
        return super().num_lost_steps + self._shadow.num_lost_steps

    def give_up(self) -> None:
        super().give_up()
        self._shadow.give_up()

    def close(self) -> None:
        super().close()
        self._shadow.close()


def _sound(log_probs: Mapping[str, float]) -> dict[str, float]:
    """Returns log-probabilities that a server accepts: a float32 sum may exceed 0, and one of an
    almost impossible action says nothing."""
    return {a: min(one, 0.0) for a, one in log_probs.items() if one >= MIN_LOG_PROB}


def _without_state(items: Sequence[AnyItem]) -> list[AnyItem]:
    """Returns the items without global states, for a server that reads none."""
    return [
        replace(item, state=None)
        if isinstance(item, Step | StepRows | EndEpisode) and item.state is not None
        else item
        for item in items
    ]
