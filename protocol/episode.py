"""The states of an episode on one server, and what may happen in each; both sides run this.

::

    IDLE --start--> AWAITING_OBSERVATION --observe t--> AWAITING_ACTION --act--> (back)
                          |    ^ same t again: repeat, nothing changes
                          +--end, abort--> ENDED, ABORTED

The server, and a gateway, run one state machine for every open episode. A client keeps the steps
that each server has been told (`muxrl.client.episodes`), and refuses a violation in the same words.
"""

from __future__ import annotations

from enum import Enum

from muxrl.protocol.errors import MalformedMessage, OutOfOrder

MAX_ID_CHARS = 256
"""Of an episode's id, which is kept, logged, and part of addresses."""


def check_episode_id(episode_id: str) -> None:
    """Raises `MalformedMessage` unless this can be an episode's id.

    It is kept, logged and put into addresses, so it has 1 to 256 printable characters and no "/".
    """
    if 0 < len(episode_id) <= MAX_ID_CHARS and episode_id.isprintable() and "/" not in episode_id:
        return
    raise MalformedMessage(
        f"{episode_id[:40]!r} cannot be an episode's id, which has 1 to {MAX_ID_CHARS} printable "
        f"characters and no '/'; this one has {len(episode_id)} characters",
        expected=f"1 to {MAX_ID_CHARS} printable characters, no '/'",
        got=repr(episode_id[:40]),
    )


class _Word(str, Enum):
    """A text of its own type, as `enum.StrEnum`, which Python 3.10 does not have."""

    __hash__ = str.__hash__  # an Enum's own takes ten times as long

    def __str__(self) -> str:
        return str(self.value)


class EpisodeState(_Word):
    """Where an episode stands."""

    IDLE = "idle"
    """Not started."""
    AWAITING_OBSERVATION = "awaiting observation"
    """The simulation has the actions of step ``t - 1``; the observations of `t` come next."""
    AWAITING_ACTION = "awaiting action"
    """The server has the observations of step `t`; their actions come next."""
    ENDED = "ended"
    """Over, as the simulation said."""
    ABORTED = "aborted"
    """Closed early; what was recorded counts as truncated."""


class EpisodeEvent(_Word):
    """What can happen to an episode."""

    START = "start"
    OBSERVE = "observe"
    ACT = "act"
    END = "end"
    ABORT = "abort"


_S = EpisodeState
_E = EpisodeEvent
OBSERVE, ACT = _E.OBSERVE, _E.ACT
"""What happens in each step: names of a module are found ten times as fast as an Enum's members."""
_ENDED, _ABORTED = _S.ENDED, _S.ABORTED
_AWAITING_ACTION, _AWAITING_OBSERVATION = _S.AWAITING_ACTION, _S.AWAITING_OBSERVATION

TRANSITIONS: dict[tuple[EpisodeState, EpisodeEvent], EpisodeState] = {
    (_S.IDLE, _E.START): _S.AWAITING_OBSERVATION,
    (_S.AWAITING_OBSERVATION, _E.OBSERVE): _S.AWAITING_ACTION,
    (_S.AWAITING_ACTION, _E.ACT): _S.AWAITING_OBSERVATION,
    (_S.AWAITING_OBSERVATION, _E.END): _S.ENDED,
    (_S.IDLE, _E.ABORT): _S.ABORTED,
    (_S.AWAITING_OBSERVATION, _E.ABORT): _S.ABORTED,
    (_S.AWAITING_ACTION, _E.ABORT): _S.ABORTED,
    # Both ends are final; repeating them is harmless.
    (_S.ENDED, _E.END): _S.ENDED,
    (_S.ENDED, _E.ABORT): _S.ENDED,
    (_S.ABORTED, _E.ABORT): _S.ABORTED,
    (_S.ABORTED, _E.END): _S.ABORTED,
}


class EpisodeStateMachine:
    """One episode's state and the index of its next step.

    Args:
        episode_id: for error messages.
    """

    __slots__ = ("episode_id", "state", "t")

    def __init__(self, episode_id: str) -> None:
        self.episode_id = episode_id
        self.state = EpisodeState.IDLE
        self.t = 0
        """The step awaited next; equally, how many steps have been observed."""

    def handle(self, event: EpisodeEvent) -> None:
        """Moves to the next state.

        Raises:
            OutOfOrder: `event` cannot happen in this state.
        """
        target = TRANSITIONS.get((self.state, event))
        if target is None:
            raise OutOfOrder(
                f"episode {self.episode_id} is {self.state} at t={self.t} and cannot {event} now"
            )
        self.state = target
        if event is OBSERVE:
            self.t += 1

    def observe(self) -> None:
        """As ``handle(OBSERVE)``, in a third of the time, where that is known to be awaited."""
        self.state = _AWAITING_ACTION
        self.t += 1

    def act(self) -> None:
        """As ``handle(ACT)``, likewise."""
        self.state = _AWAITING_OBSERVATION

    def check(self, event: EpisodeEvent) -> None:
        """Raises `OutOfOrder` where `handle` would, and changes nothing."""
        if (self.state, event) not in TRANSITIONS:
            raise OutOfOrder(
                f"episode {self.episode_id} is {self.state} at t={self.t} and cannot {event} now"
            )

    def is_repeat(self, t: int) -> bool:
        """Whether step `t` is the one seen last (True) or the next one (False).

        Raises:
            OutOfOrder: it is neither.
        """
        if t == self.t:
            return False
        if 0 <= t == self.t - 1:
            return True
        raise OutOfOrder(
            f"episode {self.episode_id} awaits t={self.t}, got t={t}; is a second client "
            "writing to this episode, or was a step lost?",
            expected=f"t={self.t}",
            got=f"t={t}",
        )

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended or was aborted."""
        return self.state is _ENDED or self.state is _ABORTED
