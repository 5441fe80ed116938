"""Transports over a network, which reconnect to a server that was lost.

If a connection is refused, cut or silent, the transport opens another one and sends the same items
again, with growing pauses. The server answers repeated items from memory, so nothing is recorded
twice. A transport asks a silent server for its status, on a separate connection, to find out
whether the server is learning or lost.
"""

from __future__ import annotations

import abc
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests

from muxrl.client.errors import ServerLost, ServerUnavailable
from muxrl.client.transport import Transport
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.codec import decode_batch_reply, decode_json, decode_weights
from muxrl.protocol.errors import MalformedMessage, MessageTooLarge, NotServing
from muxrl.protocol.messages import (
    AnyItem,
    AnyReply,
    PolicyWeights,
    Refused,
    ServerSpec,
    StartEpisode,
    Status,
)

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""Default of `patience_s`; a restarted server is back by then."""
START_PATIENCE_S = 300.0
"""Patience before the first answer, unless `patience_s` is given; a run has started by then."""
UPDATE_TIMEOUT_S = 600.0
"""Default of `update_timeout_s`; few updates take minutes."""

_SILENCE_S = 3.0
"""After this long without a byte, the server is asked for its status."""
_ATTEMPT_S = 5.0
"""Longest wait for what a server does without work: accept a connection, send spec or status."""
_SLOWEST_BYTES_PER_S = 1_000_000
"""Speed of the slowest link. The time it needs for a long message is added to `_SILENCE_S`."""
_SHORTEST_S = 0.3
"""Least time for an attempt, even if patience ends sooner."""
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0)
"""Pauses before the attempts; the last one is repeated."""
_GATEWAY_CODES = (502, 503, 504)
"""HTTP codes of a server with too many connections, or of a proxy whose server is gone."""


class Broken(Exception):
    """The connection is lost or cannot be opened; the text says why."""


class NetworkTransport(Transport, abc.ABC):
    """A `Transport` over a network. Subclasses send a frame and read its answer.

    Args:
        address: "host:port" or "http://host:port"; or a function that returns it, called at every
            attempt, for a server that may be restarted elsewhere.
        token: bearer token, "" for none.
        patience_s: how long the server may be lost (it refuses or cuts connections, or is silent)
            before `ServerLost` is raised; None: `PATIENCE_S`, but `START_PATIENCE_S` before the
            first answer.
        update_timeout_s: longest wait for an answer that the server holds back while it learns.

    Raises:
        ValueError: `address` has no host or no port, or names https for a transport without TLS;
            or a time is negative.
    """

    _has_tls = True
    _connection: Any = None
    """The connection that `_post` has opened; it has `close()`."""

    def __init__(
        self,
        address: str | Callable[[], str],
        *,
        token: str = "",
        patience_s: float | None = None,
        update_timeout_s: float = UPDATE_TIMEOUT_S,
    ) -> None:
        self._start_patience_s = START_PATIENCE_S if patience_s is None else patience_s
        patience_s = PATIENCE_S if patience_s is None else patience_s
        for name, value in (("patience_s", patience_s), ("update_timeout_s", update_timeout_s)):
            if not value >= 0:
                raise ValueError(f"{name} must be a time in seconds, 0 or more, got {value!r}")
        self._where = address if callable(address) else functools.partial(str, address)
        if self.url.startswith("https") and not self._has_tls:
            raise ValueError(
                f"the WebSocket transport has no TLS, so it would send its token to {self.url} in "
                'clear text; use transport="http", or a tunnel'
            )
        # A token that was read from a file ends with a newline.
        self._headers = {"Authorization": f"Bearer {token.strip()}"} if token else {}
        self._patience_s = patience_s
        self._update_timeout_s = update_timeout_s
        self._silence_s = min(_SILENCE_S, max(_SHORTEST_S, patience_s / 3))
        self._has_given_up = threading.Event()
        self._spec: ServerSpec | None = None
        self._items: Sequence[AnyItem] = ()
        self._frame = b""
        self._carry_s = 0
        """Seconds that a slow link needs to carry the frame; 0 for nearly all frames."""
        self._refusals: list[AnyReply] = []
        self._sent_at = 0.0
        self._is_answer_due = False

    @property
    def url(self) -> str:
        """ "http://host:port", where the server is now."""
        return base_url(self._where())

    # --- what subclasses do -------------------------------------------------------------

    @abc.abstractmethod
    def _encode(self, items: list[AnyItem]) -> bytes:
        """Returns the bytes of a frame."""

    def _decode(self, answer: bytes | str) -> list[AnyReply]:
        """Returns the replies in an answer.

        Raises:
            MalformedMessage: it is none.
        """
        return decode_batch_reply(answer).replies

    @abc.abstractmethod
    def _post(self, frame: bytes, timeout_s: float) -> None:
        """Sends a frame, over a new connection if there is none.

        Connecting and sending may each take `timeout_s`; sending a long frame `_carry_s` more.

        Raises:
            Broken: it could not be sent.
            ServerUnavailable: the server refuses this token.
        """

    @abc.abstractmethod
    def _await(self, timeout_s: float) -> bytes | str:
        """Returns the answer to the last frame.

        Raises:
            TimeoutError: nothing came within `timeout_s`; the method may be called again.
            Broken: the connection is lost.
        """

    # --- a `Transport` ------------------------------------------------------------------

    def fetch_spec(self, patience_s: float = 0.0) -> ServerSpec:
        outage = _Outage(time.monotonic(), max(patience_s, self._start_patience_s))
        while self._spec is None:
            try:
                self._spec = self._get_spec(outage)
            except Broken as error:
                self._pause(outage, error)
        return self._spec

    def fetch_weights(self) -> PolicyWeights:
        """Returns the server's newest policies.

        Raises:
            ServerUnavailable: it does not answer for `patience_s`, or refuses.
        """
        outage = _Outage(time.monotonic(), self._patience_s)
        while True:
            try:
                return decode_weights(self._get("/v1/policies", outage.clipped(_ATTEMPT_S)))
            except Broken as error:
                self._pause(outage, error)
            except MalformedMessage as error:
                raise self._unreadable(error) from None

    def is_there(self) -> bool:
        """Whether the same server answers now; may be called from any thread."""
        try:
            self._check_is_the_same(_Outage(time.monotonic(), _ATTEMPT_S))
        except (Broken, ServerUnavailable):
            return False
        return True

    def _get_spec(self, outage: _Outage) -> ServerSpec:
        try:
            spec = decode_json(self._get("/v1/spec", outage.clipped(_ATTEMPT_S)), ServerSpec)
        except MalformedMessage as error:
            raise self._unavailable(f"its answer to GET /v1/spec is no spec: {error}") from None
        if spec.protocol_version != PROTOCOL_VERSION:
            raise ServerUnavailable(
                f"server {spec.server_id!r} ({self.url}) speaks protocol version "
                f"{spec.protocol_version}, this client {PROTOCOL_VERSION}; use the same muxrl",
                server_id=spec.server_id,
            )
        return spec

    def send(self, items: Sequence[AnyItem]) -> None:
        if self._is_answer_due:  # after Ctrl-C, say: the late answer must not pass for the next one
            self._drop()
        self._items = items
        self._refusals = []
        self._frame = frame = self._encode(items if type(items) is list else list(items))
        self._carry_s = len(frame) // _SLOWEST_BYTES_PER_S
        if self._spec is not None and 0 < self._spec.max_message_bytes < len(frame):
            # The server would close the connection, and the client might not see why.
            self._refusals = [_too_large(item, len(frame), self._spec) for item in items]
            return
        self._is_answer_due = True
        self._sent_at = time.monotonic()
        try:
            self._post(frame, self._silence_s)
        except Broken:
            self._drop()  # `receive` tries again, once all servers have their messages

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            return refusals
        began_at = time.monotonic()
        try:
            replies = self._decode(self._await(self._silence_s + self._carry_s))
        except (Broken, TimeoutError) as error:
            replies = self._recover(error, self._outage(began_at, patience_s))
        except MalformedMessage as error:
            raise self._unreadable(error) from None
        for reply in replies:
            if type(reply) is Refused and self._is_ending(replies):
                outage = self._outage(began_at, patience_s)
                replies = self._recover(Broken("it is stopping"), outage, replies)
                break
        self._is_answer_due = False
        return replies

    def give_up(self) -> None:
        self._has_given_up.set()

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- patience -----------------------------------------------------------------------

    def _outage(self, began_at: float, patience_s: float | None) -> _Outage:
        """Returns the outage of a `receive` that began at `began_at`."""
        if patience_s is None:  # waiting for another server may have taken long since `send`
            return _Outage(began_at, self._patience_s)
        return _Outage(self._sent_at, patience_s)

    def _recover(
        self,
        failure: Exception,
        outage: _Outage,
        received: list[AnyReply] | None = None,
    ) -> list[AnyReply]:
        """Sends the frame again and again until its answer comes.

        Args:
            failure: why the answer did not come.
            outage: when it began, and how long it may last.
            received: the answer of a server that is stopping and starts no more episodes.
        """
        while True:
            try:
                if not (isinstance(failure, TimeoutError) and self._is_learning(outage)):
                    self._pause(outage, failure)
                    self._drop()
                    if outage.is_noted:
                        self._check_is_the_same(outage)
                    self._post(self._frame, outage.clipped(_ATTEMPT_S))
                waiting_s = outage.clipped(self._silence_s) + self._carry_s
                replies = self._decode(self._await(waiting_s))
            except (Broken, TimeoutError) as error:
                failure = error
                continue
            except MalformedMessage as error:
                raise self._unreadable(error) from None
            # Answers of the old process count: a new process does not know the episodes.
            received = replies if received is None else _latest(received, replies)
            if not self._is_ending(received):
                if outage.is_noted:
                    logger.warning("%s is back after %.1f s", self._name, outage.elapsed_s)
                return received
            failure = Broken("it is stopping")

    def _check_is_the_same(self, outage: _Outage) -> None:
        """Checks that the server that answers now is the one that was lost.

        Raises:
            Broken: it does not answer yet.
            ServerUnavailable: it is another server.
        """
        if self._spec is None:
            return
        spec = self._get_spec(outage)
        if (spec.server_id, spec.agents) != (self._spec.server_id, self._spec.agents):
            raise self._unavailable(
                f"it was lost, and now another server answers: {spec.server_id!r} with the agents "
                f"{list(spec.agents)} instead of {list(self._spec.agents)}; are two addresses "
                "mixed up, or were the agents' spaces changed?"
            )

    def _is_learning(self, outage: _Outage) -> bool:
        """Asks a silent server for its status; returns whether it is silent because it learns.

        Raises:
            Broken: it does not answer this either.
            ServerUnavailable: its update takes too long, or has failed.
        """
        try:
            status = decode_json(self._get("/v1/status", outage.clipped(_ATTEMPT_S)), Status)
        except MalformedMessage as error:
            raise Broken(f"its answer to GET /v1/status is no status: {error}") from None
        if not status.is_waiting_for_learner:
            return False
        now = time.monotonic()
        waited_s = now - self._sent_at
        if status.problem:
            raise self._unavailable(f"no answer; its status is {status.phase}: {status.problem}")
        if waited_s >= self._update_timeout_s:
            raise self._unavailable(
                f"no answer within {waited_s:.0f} s; it holds the simulations while an update runs "
                "(while_learning: wait); are updates that slow? update_timeout_s is "
                f"{self._update_timeout_s:g}"
            )
        outage.since = now
        return True

    def _pause(self, outage: _Outage, failure: Exception) -> None:
        """Waits before the next attempt; the first attempt comes at once.

        Raises:
            ServerLost: patience is over.
        """
        detail = str(failure) or "it answers GET /v1/status, but not this message"
        if outage.num_attempts and (outage.is_over or self._has_given_up.is_set()):
            self._drop()
            hint = "" if self._spec is None else " start_episode() waits for it again"
            raise ServerLost(
                f"{self._name} is lost: no answer for {outage.elapsed_s:.1f} s (patience_s is "
                f"{outage.patience_s:g}), tried {outage.num_attempts + 1} times; {detail}; is it "
                f"running?{hint}",
                server_id=self._server_id,
            )
        if outage.num_attempts and not outage.is_noted:
            outage.is_noted = True
            logger.warning(
                "%s: %s; trying again for up to %g s", self._name, detail, outage.patience_s
            )
        self._has_given_up.wait(outage.next_pause_s())

    # --- reading ------------------------------------------------------------------------

    def _is_ending(self, replies: Sequence[AnyReply]) -> bool:
        """Whether the server starts no more episodes, though a new process may soon."""
        return len(replies) == len(self._items) and any(
            isinstance(reply, Refused) and reply.code == NotServing.code
            for item, reply in zip(self._items, replies, strict=True)
            if isinstance(item, StartEpisode)
        )

    def _get(self, path: str, timeout_s: float) -> bytes:
        """Returns the answer to a GET, over a separate connection.

        Raises:
            Broken: it does not answer.
            ServerUnavailable: it refuses.
        """
        try:
            with requests.Session() as session:
                session.trust_env = False  # policy servers are not behind a web proxy
                response = session.get(
                    self.url + path, headers=self._headers, timeout=timeout_s, allow_redirects=False
                )
        except requests.Timeout:
            raise Broken(f"GET {path} is not answered: it hangs, or is out of reach") from None
        except requests.RequestException as error:
            raise Broken(f"no connection: {reason(cause_of(error))}") from None
        return self._checked(response.status_code, response.content)

    def _checked(self, code: int, body: bytes) -> bytes:
        """Returns the body of an answer with this HTTP status.

        Raises:
            Broken: another attempt may help.
            ServerUnavailable: the server refuses.
        """
        if code == 200:
            return body
        detail = f"it answered {code}: {reason_of(body)}"
        raise Broken(detail) if code in _GATEWAY_CODES else self._unavailable(detail)

    @property
    def _server_id(self) -> str:
        return self.url if self._spec is None else self._spec.server_id

    @property
    def _name(self) -> str:
        if self._spec is None:
            return f"server at {self.url}"
        return f"server {self._spec.server_id!r} ({self.url})"

    def _unreadable(self, error: MalformedMessage) -> ServerUnavailable:
        return self._unavailable(f"its answer cannot be read: {error}")

    def _unavailable(self, detail: str) -> ServerUnavailable:
        return ServerUnavailable(f"{self._name}: {detail}", server_id=self._server_id)


class _Outage:
    """A time in which a server does not answer.

    Args:
        since: when it began (monotonic): at the last answer, or at the message without one.
        patience_s: how long it may last.
    """

    def __init__(self, since: float, patience_s: float) -> None:
        self.since = since
        self.patience_s = patience_s
        self.num_attempts = 0
        self.is_noted = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.since

    @property
    def is_over(self) -> bool:
        return self.elapsed_s >= self.patience_s

    def clipped(self, time_s: float) -> float:
        """Returns `time_s`, or less if patience ends sooner."""
        return max(_SHORTEST_S, min(time_s, self.patience_s - self.elapsed_s))

    def next_pause_s(self) -> float:
        """Counts an attempt; returns the pause before it."""
        pause_s = _PAUSES_S[min(self.num_attempts, len(_PAUSES_S) - 1)]
        self.num_attempts += 1
        return min(pause_s, max(0.0, self.patience_s - self.elapsed_s))


def base_url(address: str) -> str:
    """Returns "http://host:port" for "host:port", "http://host:port/" and the like.

    Raises:
        ValueError: `address` has no host or no port.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    scheme = {"": "http", "ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if not parts.hostname or parts.port is None or scheme not in ("http", "https"):
        raise ValueError(
            f"a server's address must be HOST:PORT or http://HOST:PORT, got {address!r}"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{parts.port}"


def cause_of(error: BaseException) -> BaseException:
    """Returns the operating system's error, which urllib3 and `requests` wrap several times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def reason(error: BaseException) -> str:
    """Returns the text of a network error, or its class's name if it has no text."""
    return str(error) or type(error).__name__


def _latest(old: list[AnyReply], new: list[AnyReply]) -> list[AnyReply]:
    """Returns the old replies, with new replies in place of refusals."""
    if len(old) != len(new):  # the frame was refused as a whole
        return new
    return [
        theirs if isinstance(mine, Refused) else mine for mine, theirs in zip(old, new, strict=True)
    ]


def reason_of(body: bytes) -> str:
    """Returns the message in the body of a refusal, or the beginning of any other body."""
    try:
        return decode_json(body, Refused).message
    except MalformedMessage:
        return body[:200].decode(errors="replace")


def _too_large(item: AnyItem, num_bytes: int, spec: ServerSpec) -> Refused:
    return Refused(
        item.episode_id,
        code=MessageTooLarge.code,
        message=f"a message of {num_bytes} bytes is over the limit of server {spec.server_id!r}, "
        f"{spec.max_message_bytes} bytes (limits.max_message_bytes); put fewer simulations "
        "into one message",
        expected=f"at most {spec.max_message_bytes} bytes",
        got=f"{num_bytes} bytes",
    )
