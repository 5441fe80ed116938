"""The part of a server that the network shows: access, limits of messages, and refusals.

A transport (`websocket.py`, `http.py`) needs nothing but a `Front`. Behind it answers a policy
server (`muxrl.servers.app`), or the gateway to several of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from muxrl.protocol.codec import encode
from muxrl.protocol.episode import MAX_ID_CHARS
from muxrl.protocol.errors import MalformedMessage, MessageTooLarge, ProtocolError, UnsoundValue
from muxrl.protocol.messages import (
    MAX_REASON_CHARS,
    AnyItem,
    AnyReply,
    EndEpisode,
    Health,
    PolicyWeights,
    Refused,
    ServerSpec,
    Status,
    Step,
    StepRows,
)
from muxrl.servers.network.access import check_access
from muxrl.servers.network.exposition import Family, counter, gauge, histogram
from muxrl.servers.network.latency import Latencies
from muxrl.servers.network.message_limits import MessageLimits

Answered = Callable[[list[AnyReply]], None]


class Front(ABC):
    """Takes items and gives answers, over any transport.

    Args:
        spec: what clients learn about the server.
        address: "host:port", for messages.
        token: bearer token that clients must present, "" for none.
        on_shutdown: called when a client with the token asks the server to stop; None: such
            requests are refused, since a run watches over the server.
    """

    def __init__(
        self,
        spec: ServerSpec,
        address: str,
        token: str,
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        self.spec = spec
        self.address = address
        self.token = token
        self.on_shutdown = on_shutdown
        self.refusals = Refusals()
        self.num_connections = 0
        """Number of open WebSockets."""
        self.num_restarts = 0
        """How often the run has restarted the server."""
        self.run_requests: Mapping[str, Callable[[Any], msgspec.Struct]] = {}
        """By name, functions that answer `muxrl.protocol.run_messages`; called in other threads."""
        self.exchanges = Latencies()
        """How long each message took from its arrival until its answer was sent, including its time
        at the gate."""
        self.messages = MessageLimits(spec)
        """Reads clients' messages."""

    @abstractmethod
    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        """Answers the items of a frame, in order; must not raise. Called on the event loop.

        Args:
            items: of any episodes.
            reply: takes the answers, one for each item, on the event loop. It does not raise.
            is_alone: whether its client is the only one connected, so that no other frame can come.
        """

    @abstractmethod
    def status(self) -> Status:
        """Returns the server's status; cheap, and safe from any thread."""

    def health(self) -> Health:
        """Returns whether the server is ready, or what is wrong with it."""
        status = self.status()
        return Health(status.phase, status.server_id, status.problem)

    def weights(self) -> bytes:
        """Returns a `PolicyWeights` in msgpack. Called on the event loop."""
        problem = f"{self.spec.algorithm} has no weights of its own; ask the policy servers instead"
        return encode(PolicyWeights(self.spec.server_id, problem=problem))

    @property
    def num_refused(self) -> int:
        """Number of refused items and requests."""
        return self.refusals.by_code.total()

    def measures(self) -> list[Family]:
        """Returns what ``GET /metrics`` shows. Called on the event loop."""
        status, refused = self.status(), self.refusals.by_code
        return [
            Family("gauge", "phase", "1 for the phase that the server is in.",
                   {(status.phase,): 1.0}, ("phase",)),
            counter("env_steps_total", "Training env steps.", status.num_env_steps),
            counter("agent_steps_total", "Training agent steps.", status.num_agent_steps),
            counter("expired_episodes_total", "Episodes closed because they were idle.",
                    status.num_expired),
            gauge("open_episodes", "Episodes that are open.", status.num_open_episodes),
            gauge("episode_return_mean", "Mean over the last 100 training episodes of the mean "
                  "return of an episode's agents.", status.episode_return_mean),
            gauge("websockets", "WebSockets that are open.", self.num_connections),
            counter("restarts_total", "How often the run has started this server again.",
                    self.num_restarts),
            histogram("exchange_seconds", "Seconds from a message to its answer, held back or not.",
                      self.exchanges),
            Family("counter", "refusals_total", "Items and requests that were refused.",
                   {(str(code),): float(n) for code, n in sorted(refused.items())}, ("code",)),
        ]  # fmt: skip

    async def answered(self, items: list[AnyItem]) -> list[AnyReply]:
        """Returns the answers to the items of a frame."""
        answers: asyncio.Future[list[AnyReply]] = asyncio.get_running_loop().create_future()

        def reply(replies: list[AnyReply]) -> None:
            if not answers.done():  # else its connection is gone
                answers.set_result(replies)

        self.answer(items, reply, is_alone=False)
        return await answers

    def refuse(self, item: AnyItem, error: ProtocolError) -> Refused:
        """Counts a refused item, and returns the answer to it."""
        where = f"t={item.t} of " if isinstance(item, Step | EndEpisode) else ""
        episode_id = item.episode_id[:MAX_ID_CHARS]
        name = episode_id if episode_id.isprintable() else repr(episode_id)
        what = (
            "a step of several episodes"
            if isinstance(item, StepRows)
            else f"{where}episode {name or repr('')}"
        )
        reason = f"{self._name} refused {what}: {error.message}"
        return self._refused(episode_id, reason, error)

    def refuse_message(self, what: str, error: ProtocolError) -> Refused:
        """Counts a message or request that is refused as a whole, and returns the answer to it.

        Args:
            what: its name for people, such as "POST /v1/step".
            error: why it is refused.
        """
        reason = error.message
        if isinstance(error, MalformedMessage | MessageTooLarge):  # others do so already
            reason = f"{self._name} refused {what}: {reason}"
        return self._refused("", reason, error)

    def _refused(self, episode_id: str, reason: str, error: ProtocolError) -> Refused:
        cause = error.__cause__ if error.code >= 500 else None
        self.refusals.add(error.code, reason, time.monotonic(), cause)
        return Refused(
            episode_id,
            code=error.code,
            message=reason[:MAX_REASON_CHARS],
            agent_id=_cut(error.agent_id),
            expected=_cut(error.expected),
            got=_cut(error.got),
            is_unsound=isinstance(error, UnsoundValue),
        )

    def check_access(self, header: Callable[[str], str | None]) -> None:
        """Raises `Forbidden` or `Unauthorized` unless a request with these headers may be answered.

        Args:
            header: returns a header of the request by its name, None if it is missing.
        """
        check_access(self._name, self.token, header)

    @property
    def _name(self) -> str:
        return f"server {self.spec.server_id!r} ({self.address})"


def _cut(text: str | None) -> str | None:
    """Returns a refusal's text, which may repeat a client's value, cut to a readable length."""
    return None if text is None else text[:MAX_REASON_CHARS]


def internal_error(error: Exception) -> ProtocolError:
    """Returns the refusal of an item that failed by no fault of the client."""
    problem = ProtocolError(f"an error in the server itself, see its log: {error!r}")
    problem.code = 500
    problem.__cause__ = error
    return problem


logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0


class Refusals:
    """Counts refusals by code, and logs some of them, where `muxrl watch` shows them.

    A client that makes a mistake repeats it at every step. So the first refusal of each code is
    logged, and then at most one in ten seconds.
    """

    def __init__(self) -> None:
        self.by_code: Counter[int] = Counter()
        self._num_unlogged: Counter[int] = Counter()
        self._logged_at: dict[int, float] = {}

    def add(self, code: int, reason: str, now: float, cause: BaseException | None = None) -> None:
        """Counts a refusal, and maybe logs it.

        Args:
            code: see `muxrl.protocol.errors`.
            reason: the text for the client; it may repeat its values, so it is logged as one line.
            now: monotonic seconds.
            cause: an error of the server itself, whose traceback is logged.
        """
        self.by_code[code] += 1
        if now - self._logged_at.get(code, -math.inf) < _INTERVAL_S:
            self._num_unlogged[code] += 1
            return
        self._logged_at[code] = now
        line = reason[:MAX_REASON_CHARS]
        num_unlogged = self._num_unlogged.pop(code, 0)
        logger.log(
            logging.ERROR if cause else logging.WARNING,
            "%d: %s%s",
            code,
            line if line.isprintable() else repr(line),
            f" ({num_unlogged} more refusals with this code since the last one logged)"
            if num_unlogged
            else "",
            exc_info=cause,
        )
