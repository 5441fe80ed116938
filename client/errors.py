"""Errors of the client, sorted by what the caller can do about them.

::

    ClientError
    ├── AssignmentError      fix the code: an agent has no server, or two; an unknown server
    ├── EpisodeMisuse        fix the code: a method out of order, an unknown or finished episode
    ├── EpisodeAborted       start a new episode: this one is closed on every server
    │   ├── EpisodeLost      the same, nothing else: a server does not know it (any more)
    │   ├── RunIsOver        stop: the run behind the gateway has ended well
    │   └── RefusedByServer  the same, and fix the code: the server says what was wrong
    └── ServerUnavailable    give up: the server lets nobody in, or does not answer
        └── ServerLost       start a new episode, which waits for the server to return
"""

from __future__ import annotations

from typing import Any

from muxrl.protocol.errors import EpisodeGone, RunOver
from muxrl.protocol.messages import Refused


class ClientError(Exception):
    """Base of the client's errors; all can be pickled, since Ray sends them between processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception.__reduce__ calls the class with `args` alone, without its keywords.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class AssignmentError(ClientError):
    """An agent has no server, or two, or a server is unknown."""


class EpisodeMisuse(ClientError):
    """A method was called that the episode does not allow now."""


class EpisodeAborted(ClientError):
    """The episode was closed early on every server.

    Args:
        message: why it was closed.
        episode_id: the episode.
        server_id: the server whose answer was the reason.
    """

    def __init__(self, message: str, *, episode_id: str, server_id: str) -> None:
        super().__init__(message)
        self.episode_id = episode_id
        self.server_id = server_id


class EpisodeLost(EpisodeAborted):
    """A server does not know the episode: it was restarted, or the episode expired.

    Another episode may be started at once.
    """


class RunIsOver(EpisodeAborted):
    """The run behind the gateway has ended as it should; there is nothing more to play."""


class RefusedByServer(EpisodeAborted):
    """A server refused an item of this episode.

    Args:
        refused: the server's refusal.

    Attributes:
        code: HTTP status code of the refusal; see `muxrl.protocol.errors`.
        agent_id: the agent at fault, if there is one.
        expected: what the server would have accepted.
        got: what it was sent.
        is_unsound: whether only a number is wrong: not finite, or beyond a limit.
    """

    def __init__(self, refused: Refused, *, episode_id: str, server_id: str) -> None:
        super().__init__(refused.message, episode_id=episode_id, server_id=server_id)
        self.is_unsound = refused.is_unsound
        self.code = refused.code
        self.agent_id = refused.agent_id
        self.expected = refused.expected
        self.got = refused.got


class ServerUnavailable(ClientError):
    """A server does not let this client in, or does not answer.

    Args:
        message: which server, where, and what was tried.
        server_id: the server's id, or its address if the id is not known yet.
    """

    def __init__(self, message: str, *, server_id: str) -> None:
        super().__init__(message)
        self.server_id = server_id


class ServerLost(ServerUnavailable):
    """A server was lost for longer than the client's patience.

    The episodes of the message that it did not answer are closed on the other servers. The next
    `start_episode` waits for it again.
    """


_LOST_CODES = (404, EpisodeGone.code)


def failure_of(server_id: str, episode_id: str, reply: Refused) -> EpisodeAborted:
    """Returns the error for an item of an episode that a server refused."""
    if reply.code in _LOST_CODES:
        return EpisodeLost(
            f"{reply.message}; the episode is closed on every server, and start_episode() may be "
            "called again",
            episode_id=episode_id,
            server_id=server_id,
        )
    if reply.code == RunOver.code:
        return RunIsOver(reply.message, episode_id=episode_id, server_id=server_id)
    return RefusedByServer(reply, episode_id=episode_id, server_id=server_id)
