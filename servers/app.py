"""The app of a policy server: items in, answers out, over any transport.

What happens to a frame: `PolicyServerApp.answer` has the episodes record its items, the gate of the
`Feed` may hold it, the `Batcher` computes its actions, and `Frame.finish` sends its answers.
An exception becomes the answer to its item; the other items, the other episodes and the connection
go on. `muxrl.servers.websocket` and `muxrl.servers.http` are the transports.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from muxrl.protocol.episode import MAX_ID_CHARS
from muxrl.protocol.errors import ProtocolError
from muxrl.protocol.messages import (
    ERROR_STORY_CHARS,
    AnyReply,
    EndEpisode,
    Refused,
    ServerSpec,
    Status,
    Step,
)
from muxrl.servers.access import check_access
from muxrl.servers.batcher import Answered, AnyItem, Batcher, Frame
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.feed import Feed
from muxrl.servers.message_limits import MessageLimits

logger = logging.getLogger(__name__)

_EXPIRY_INTERVAL_S = 5.0
_IDLE_EXPIRIES_LOGGED = 5


@dataclass
class PolicyServerApp:
    """What all transports share.

    Args:
        spec: what clients are told of the server.
        address: "host:port", for messages.
        token: bearer token that clients must present, "" for none.
        store: the episodes.
        batcher: computes actions.
        feed: its gate holds training frames while simulations have to wait for the learner.
        status: returns the server's status.
        shutdown: stops the server.
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
    """Number of open WebSockets."""
    messages: MessageLimits = field(init=False)
    """Reads what clients send."""

    def __post_init__(self) -> None:
        self.messages = MessageLimits(self.spec)

    # --- items --------------------------------------------------------------------------

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        """Answers the items of a frame, in order; raises nothing.

        The answers have been sent when this returns, unless the frame waits at the gate or for
        other frames to share its forward pass.

        Args:
            items, reply, is_alone: see `Frame`.
        """
        now = time.monotonic()
        outcomes = [self._accept(item, now) for item in items]
        self.store.finish_frame()
        pending = [outcome for outcome in outcomes if isinstance(outcome, PendingStep)]
        frame = Frame(items, outcomes, reply, self._refuse, is_alone, pending)
        if not pending:
            frame.finish()
        elif any(step.is_training for step in pending):
            self.feed.when_open(functools.partial(self.batcher.submit, frame))
        else:
            self.batcher.submit(frame)

    async def answered(self, items: list[AnyItem]) -> list[AnyReply]:
        """Returns the answers to the items of a frame."""
        answers: asyncio.Future[list[AnyReply]] = asyncio.get_running_loop().create_future()

        def reply(replies: list[AnyReply]) -> None:
            if not answers.done():  # its connection is gone
                answers.set_result(replies)

        self.answer(items, reply, is_alone=False)
        return await answers

    def _accept(self, item: AnyItem, now: float) -> AnyReply | PendingStep:
        try:
            return self.store.accept(item, now)
        except ProtocolError as error:
            return self._refuse(item, error)
        except Exception as error:
            logger.exception("an item of episode %r failed", item.episode_id)
            return self._refuse(item, _internal(error))

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
            agent_id=_cut(error.agent_id),
            expected=_cut(error.expected),
            got=_cut(error.got),
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


def _cut(text: str | None) -> str | None:
    """Returns a text of a refusal, which repeats what came, without what is too long to read."""
    return None if text is None else text[:ERROR_STORY_CHARS]


def _internal(error: Exception) -> ProtocolError:
    problem = ProtocolError(f"an error in the server itself, see its log: {error!r}")
    problem.code = 500
    return problem


async def expire_episodes(store: EpisodeStore) -> None:
    """Closes idle episodes until cancelled."""
    while True:
        await asyncio.sleep(_EXPIRY_INTERVAL_S)
        try:
            expired = store.expire(time.monotonic())
        except Exception:  # nothing else would report it, and idle episodes would stay for ever
            logger.exception("idle episodes could not be closed")
            continue
        if expired:
            logger.warning(
                "%d idle episodes closed as truncated: %s",
                len(expired),
                ", ".join(expired[:_IDLE_EXPIRIES_LOGGED]),
            )
