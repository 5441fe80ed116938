"""Checks the ids of episodes and the order of their messages, for client and server."""

from __future__ import annotations

from muxrl.protocol.errors import MalformedMessage, OutOfOrder

MAX_ID_CHARS = 256
"""Longest id of an episode, which is kept, logged, and part of addresses."""


def check_episode_id(episode_id: str) -> None:
    """Raises `MalformedMessage` if a text cannot be an episode's id.

    An id is kept, logged and put into addresses, so it has 1 to 256 printable characters, no "/".
    """
    if 0 < len(episode_id) <= MAX_ID_CHARS and episode_id.isprintable() and "/" not in episode_id:
        return
    raise MalformedMessage(
        f"{episode_id[:40]!r} cannot be an episode's id, which has 1 to {MAX_ID_CHARS} printable "
        f"characters and no '/'; this one has {len(episode_id)} characters",
        expected=f"1 to {MAX_ID_CHARS} printable characters, no '/'",
        got=repr(episode_id[:40]),
    )


def is_repeat(episode_id: str, awaited: int, t: int) -> bool:
    """Whether step `t` is the last received step again (True) or the awaited one (False).

    Raises:
        OutOfOrder: it is neither of them.
    """
    if t == awaited:
        return False
    if 0 <= t == awaited - 1:
        return True
    raise OutOfOrder(
        f"episode {episode_id} awaits t={awaited}, got t={t}; is a second client "
        "writing to this episode, or was a step lost?",
        expected=f"t={awaited}",
        got=f"t={t}",
    )


def unanswered(episode_id: str, t: int, what: str) -> str:
    """Returns the error's text for an episode whose last step has not been answered yet.

    Args:
        episode_id: of the episode.
        t: the step that is awaited next.
        what: what the episode cannot do now, "observe" or "end".
    """
    return f"episode {episode_id} is awaiting action at t={t} and cannot {what} now"
