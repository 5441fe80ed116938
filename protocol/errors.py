"""The reasons for which a server refuses a message, with their HTTP status codes.

::

    ProtocolError               the peer's message cannot be accepted; nothing was recorded
    ├── MalformedMessage        400  not one of the protocol's messages: fix the caller
    ├── Unauthorized            401  the token is missing or wrong
    ├── Forbidden               403  a web page, or a name that is not this machine's
    ├── OutOfOrder              409  another step of this episode was expected
    ├── EpisodeGone             410  unknown here: ended, expired, or the server was restarted
    ├── MessageTooLarge         413  over the server's limit
    ├── ValueMismatch           422  an observation, action, reward or agent is not as declared
    ├── RunOver                 423  the run has ended well, and takes no more episodes
    ├── TooManyEpisodes         429  wait for one to end, then retry
    └── NotServing              503  the server is stopping, or has failed

Every class has an HTTP status code; `error_for_code` finds the class of a code.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """A message was refused.

    Args:
        message: one sentence with what was refused, what was expected, what came instead, and the
            likely cause.
        agent_id: the agent at fault, if there is one.
        expected: what would have been accepted.
        got: what came instead.
    """

    code: int = 400

    def __init__(
        self,
        message: str,
        *,
        agent_id: str | None = None,
        expected: str | None = None,
        got: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.agent_id = agent_id
        self.expected = expected
        self.got = got


class MalformedMessage(ProtocolError):
    """The bytes are not one of the protocol's messages."""

    code = 400


class Unauthorized(ProtocolError):
    """The bearer token is missing or wrong."""

    code = 401


class Forbidden(ProtocolError):
    """A web page asks, a server without a token is called by a foreign name, or a server of a run
    is asked to stop."""

    code = 403


class OutOfOrder(ProtocolError):
    """The episode expects another step or end than this one."""

    code = 409


class EpisodeGone(ProtocolError):
    """The server does not know this episode, or not any more."""

    code = 410


class MessageTooLarge(ProtocolError):
    """The message is longer than the server accepts."""

    code = 413


class ValueMismatch(ProtocolError):
    """A value does not fit the space, or an agent is not one that was declared."""

    code = 422


class UnsoundValue(ValueMismatch):
    """A value is as declared, except that a number is not finite or beyond a limit."""


class RunOver(ProtocolError):
    """The run has ended as planned: episodes can neither begin nor continue."""

    code = 423


class TooManyEpisodes(ProtocolError):
    """The server has as many open episodes as it may have."""

    code = 429


class NotServing(ProtocolError):
    """The server is stopping or has failed; it takes no steps."""

    code = 503


REFUSALS: tuple[type[ProtocolError], ...] = tuple(ProtocolError.__subclasses__())
"""All direct subclasses of `ProtocolError`, each with a different code."""

_BY_CODE = {cls.code: cls for cls in REFUSALS}


def error_for_code(code: int) -> type[ProtocolError]:
    """Returns the class of an HTTP status code; `ProtocolError` for an unknown code."""
    return _BY_CODE.get(code, ProtocolError)
