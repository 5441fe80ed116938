"""The conditions of an evaluation: all as learned, or something else in the place of some agents.

In records, a condition is the text in ``replaced``::

    null                  all agents act as learned
    "ppo"                 the agents of server ppo act at random
    "ppo:untrained"       they act with the weights that the server began with
    "ppo/left"            those of them on the side "left" act at random
    "ppo/left:untrained"  they act with the weights that the server began with

A server's id has neither "/" nor ":", so these are unambiguous. One text tells conditions apart, so
that whoever looks for a server's id finds what it found before there were the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from muxrl.orchestrator.records.rows import EvaluationRow

_SIDE, _UNTRAINED = "/", ":untrained"


def untrained(key: str) -> str:
    """Returns the key of the condition in which the same agents act as their server began."""
    return f"{key}{_UNTRAINED}"


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
    """Whether they act as the server began, instead of at random."""

    @property
    def key(self) -> str | None:
        """The text in records."""
        if self.server_id is None:
            return None
        key = f"{self.server_id}{_SIDE}{self.side}" if self.side else self.server_id
        return untrained(key) if self.is_untrained else key

    @classmethod
    def of_row(cls, row: EvaluationRow) -> Condition:
        """Reads the condition of an evaluation's row."""
        key = row.replaced
        if key is None:
            return cls()
        name = key.removesuffix(_UNTRAINED)
        server_id, _, side = name.partition(_SIDE)
        return cls(server_id, side, tuple(row.agents), name != key)

    @property
    def label(self) -> str:
        """A name for the condition in paths: ``all_learned``, ``ppo_random``, ``ppo_untrained``."""
        if self.server_id is None:
            return "all_learned"
        who = f"{self.server_id}_{self.side}" if self.side else self.server_id
        return f"{who}_{'untrained' if self.is_untrained else 'random'}"


AS_LEARNED = Condition()
