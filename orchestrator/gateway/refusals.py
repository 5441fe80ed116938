"""What an error of the client behind a gateway is to the client in front of it."""

from __future__ import annotations

from muxrl.client.errors import ClientError, EpisodeAborted, RefusedByServer, ServerLost
from muxrl.protocol.errors import (
    EpisodeGone,
    NotServing,
    OutOfOrder,
    ProtocolError,
    UnsoundValue,
    error_for_code,
)


def refusal_of(why: ClientError, *, is_start: bool) -> ProtocolError:
    """Returns the refusal of an item whose episode the client has closed on all servers.

    A start that a server knows already, though the gateway does not, is a repeat: a gateway before
    this one was lost when it had passed it on. So another episode may be started.

    Args:
        why: what the client raised.
        is_start: whether the item was a start.
    """
    if isinstance(why, RefusedByServer) and not (is_start and why.code == OutOfOrder.code):
        refusal = (UnsoundValue if why.is_unsound else error_for_code(why.code))(
            f"{why}; the episode is closed on every server",
            agent_id=why.agent_id,
            expected=why.expected,
            got=why.got,
        )
        refusal.code = why.code
        return refusal
    if isinstance(why, EpisodeAborted | ServerLost):
        return EpisodeGone(f"{why}; another episode may be started")
    return NotServing(str(why))
