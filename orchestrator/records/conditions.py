"""The conditions of an evaluation: all as learned, or something else in the place of some agents.

In records, a condition is the text in ``replaced``::

    null                  all agents act as learned
    "ppo"                 the agents of server ppo act at random
    "ppo:untrained"       they act with the weights that the server began with
    "ppo/left"            those of them on the side "left" act at random
    "ppo/left:untrained"  they act with the weights that the server began with
    "ppo=dqn"             they act as dqn has learned, a shadow of that server
    "ppo=dqn:untrained"   they act with the weights that dqn began with

A server's id has none of "/", ":" and "=", so these are unambiguous; a side may have them. One
text tells conditions apart, so that whoever looks for a server's id finds what it found before
there were the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from muxrl.orchestrator.records.rows import EvaluationRow

_SIDE, _SHADOW, _UNTRAINED = "/", "=", ":untrained"


def untrained(key: str) -> str:
    """Returns the key of the condition in which the same agents act as their server began."""
    return f"{key}{_UNTRAINED}"


def seen_by(server_id: str, conditions: Collection[str]) -> dict[str, str]:
    """Returns what conditions of an evaluation are to a server that may have acted in none of its
    training: each as if the server, which was a shadow then, had acted.

    Args:
        server_id: it is a shadow, was one, or had one that replaced it.
        conditions: keys, "" for all as learned.

    Returns:
        Key to key; that of the server which acted is where that did. {}: it was not evaluated.
    """
    for key in conditions:
        acting, _, shadow = key.partition(_SHADOW)
        if shadow == server_id and _SIDE not in key:
            names = {key: "", untrained(key): untrained(server_id), acting: server_id, "": acting}
            return {one: names[one] for one in conditions if one in names}
    return {one: one for one in conditions} if server_id in conditions else {}


@dataclass(frozen=True)
class Condition:
    """Who plays; the others act as learned."""

    server_id: str | None = None
    """Whose agents are replaced; None: nobody's."""
    side: str = ""
    """Which of them, see `muxrl.orchestrator.measure.sides`; "": all."""
    agents: tuple[str, ...] = ()
    """The agents of that side."""
    is_untrained: bool = False
    """Whether they act as the server began, or its shadow, instead of at random."""
    shadow: str = ""
    """The server that acts in its place; "": none."""

    @property
    def key(self) -> str | None:
        """The text in records."""
        if self.server_id is None:
            return None
        key = f"{self.server_id}{_SIDE}{self.side}" if self.side else self.server_id
        key += f"{_SHADOW}{self.shadow}" if self.shadow else ""
        return untrained(key) if self.is_untrained else key

    @property
    def text(self) -> str:
        """The condition in words."""
        if self.server_id is None:
            return "all as learned"
        who = f"{self.server_id}{_SIDE}{self.side}" if self.side else self.server_id
        if self.shadow:
            who = f"{self.shadow} in the place of {who}"
        elif not self.is_untrained:
            who += " at random"
        return f"{who} untrained" if self.is_untrained else who

    @classmethod
    def of_row(cls, row: EvaluationRow) -> Condition:
        """Reads the condition of an evaluation's row."""
        key = row.replaced
        if key is None:
            return cls()
        name = key.removesuffix(_UNTRAINED)
        who, _, side = name.partition(_SIDE)
        server_id, _, shadow = who.partition(_SHADOW)
        return cls(server_id, side, tuple(row.agents), name != key, shadow)

    @property
    def label(self) -> str:
        """A name for the condition in paths: ``all_learned``, ``ppo_random``, ``ppo_untrained``."""
        if self.server_id is None:
            return "all_learned"
        who = f"{self.server_id}_{self.side}" if self.side else self.server_id
        if self.shadow:
            who += f"_as_{self.shadow}"
        elif not self.is_untrained:
            who += "_random"
        return f"{who}_untrained" if self.is_untrained else who


AS_LEARNED = Condition()
