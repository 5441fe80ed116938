"""The app of a policy server: items in, answers out, over any transport.

Exceptions become answers here and nowhere else. A refused item is answered as such; the other
items of its frame, the other episodes and the connection go on. `muxrl.servers.websocket` and
`muxrl.servers.http` are the transports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from muxrl.protocol.episode import MAX_ID_CHARS
from muxrl.protocol.errors import NotServing, ProtocolError
from muxrl.protocol.messages import (
    ERROR_STORY_CHARS,
    AbortEpisode,
    AnyReply,
    EndEpisode,
    Refused,
    ServerSpec,
    StartEpisode,
    Status,
    Step,
)
from muxrl.servers.access import check_access
from muxrl.servers.batcher import Batcher
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.feed import Feed

logger = logging.getLogger(__name__)

AnyItem = StartEpisode | Step | EndEpisode | AbortEpisode
Answered = Callable[[list[AnyReply]], None]
_EXPIRY_INTERVAL_S = 5.0
_IDLE_EXPIRIES_LOGGED = 5


@dataclass
class PolicyServerApp:
    """What all transports share.

    Args:
        address: "host:port", for messages.
    """

    spec: ServerSpec
    address: str
    token: str
    store: EpisodeStore
    batcher: Batcher
    feed: Feed
    status: Callable[[], Status]
    shutdown: Callable[[], None]
    num_refused: int = 0
    num_connections: int = 0
    """WebSockets that are open."""

    # --- items --------------------------------------------------------------------------

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        """Answers the items of a frame, in order; nothing is raised.

        Args:
            items: of one frame.
            reply: called with the answers, one for each item: before this returns, unless the
                frame waits at the gate or for others to share its forward pass. It raises
                nothing, since others are answered after it.
            is_alone: whether nobody else can ask meanwhile.
        """
        now = time.monotonic()
        outcomes: list[AnyReply | PendingStep] = []
        for item in items:
            try:
                outcomes.append(self.store.accept(item, now))
            except ProtocolError as error:
                outcomes.append(self._refuse(item, error))
            except Exception as error:
                logger.exception("an item of episode %r failed", item.episode_id)
                outcomes.append(self._refuse(item, _internal(error)))
        self.store.finish_frame()
        pending = [outcome for outcome in outcomes if isinstance(outcome, PendingStep)]

        def finish(problem: NotServing | None = None) -> None:
            reply([self._reply(*pair, problem) for pair in zip(items, outcomes, strict=True)])

        def act() -> None:
            self.batcher.submit(pending, finish, is_alone=is_alone)

        if not pending:
            finish()
        elif any(step.is_training for step in pending):
            self.feed.when_open(act)
        else:
            act()

    async def answered(self, items: list[AnyItem]) -> list[AnyReply]:
        """Returns what `answer` replies, for one of many who ask."""
        answers: asyncio.Future[list[AnyReply]] = asyncio.get_running_loop().create_future()

        def reply(replies: list[AnyReply]) -> None:
            if not answers.done():  # its connection is gone
                answers.set_result(replies)

        self.answer(items, reply, is_alone=False)
        return await answers

    def _reply(
        self, item: AnyItem, outcome: AnyReply | PendingStep, problem: NotServing | None
    ) -> AnyReply:
        if not isinstance(outcome, PendingStep):
            return outcome
        if outcome.answer is not None:
            return outcome.answer
        assert problem is not None
        return self._refuse(item, problem)

    def _refuse(self, item: AnyItem, error: ProtocolError) -> Refused:
        self.num_refused += 1
        where = f"t={item.t} of " if isinstance(item, Step | EndEpisode) else ""
        episode_id = item.episode_id[:MAX_ID_CHARS]
        name = episode_id if episode_id.isprintable() else repr(episode_id)
        story = (
            f"server {self.spec.server_id!r} ({self.address}) refused {where}episode "
            f"{name}: {error.message}"
        )
        return Refused(
            episode_id,
            code=error.code,
            message=story[:ERROR_STORY_CHARS],
            agent_id=error.agent_id,
            expected=error.expected,
            got=error.got,
        )

    # --- access -------------------------------------------------------------------------

    def check_access(self, header: Callable[[str], str | None]) -> None:
        """Raises `Forbidden` or `Unauthorized` unless a request with these headers may be answered.

        Args:
            header: a request's header by its name, None if it is missing.
        """
        check_access(
            f"server {self.spec.server_id!r} ({self.address})",
            self.token,
            authorization=header("authorization"),
            origin=header("origin"),
            host=header("host"),
        )


def _internal(error: Exception) -> ProtocolError:
    problem = ProtocolError(f"an error in the server itself, see its log: {error!r}")
    problem.code = 500
    return problem


async def expire_episodes(store: EpisodeStore) -> None:
    """Closes idle episodes until cancelled."""
    while True:
        await asyncio.sleep(_EXPIRY_INTERVAL_S)
        expired = store.expire(time.monotonic())
        if expired:
            logger.warning(
                "%d idle episodes closed as truncated: %s",
                len(expired),
                ", ".join(expired[:_IDLE_EXPIRIES_LOGGED]),
            )
