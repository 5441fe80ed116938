"""One message of a client, while it is answered: what it asks, and where its answers go."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muxrl.protocol.errors import NotServing, ProtocolError
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyReply,
    EndEpisode,
    Refused,
    StartEpisode,
    Step,
)
from muxrl.servers.episodes.episode import PendingStep

AnyItem = StartEpisode | Step | EndEpisode | AbortEpisode
Answered = Callable[[list[AnyReply]], None]


class Frame(msgspec.Struct, eq=False):
    """The items of one message, and what has become of each.

    Args:
        items: of any episodes, in the order in which they are answered.
        outcomes: for each item its answer, or the step that waits for its actions.
        reply: takes the answers, one for each item. It raises nothing: other frames are answered
            after it.
        refuse: makes the answer to an item that failed.
        is_alone: whether its client is the only one connected, so that no other frame can come.
        pending: the steps among the outcomes.
    """

    items: list[AnyItem]
    outcomes: list[AnyReply | PendingStep]
    reply: Answered
    refuse: Callable[[AnyItem, ProtocolError], Refused]
    is_alone: bool
    pending: list[PendingStep]

    def finish(self, problem: NotServing | None = None) -> None:
        """Sends the answers.

        Args:
            problem: why pending steps have none; None if all have one.
        """
        replies: list[AnyReply] = []
        for item, outcome in zip(self.items, self.outcomes, strict=True):
            if not isinstance(outcome, PendingStep):
                replies.append(outcome)
            elif outcome.answer is not None:
                replies.append(outcome.answer)
            else:
                assert problem is not None
                replies.append(self.refuse(item, problem))
        self.reply(replies)
