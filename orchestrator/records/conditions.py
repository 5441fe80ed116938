"""The conditions of an evaluation: all agents act as learned, or some of them are replaced.

Records name a condition by the text in ``replaced``::

    null                  all agents act as learned
    "ppo"                 the agents of server ppo act at random
    "ppo:untrained"       the agents of ppo act with the weights that it began with
    "ppo/left"            the agents of ppo on the side "left" act at random
    "ppo/left:untrained"  the agents of that side act with the weights that ppo began with
    "ppo=dqn"             the agents of ppo act as its shadow dqn has learned
    "ppo=dqn:untrained"   the agents of ppo act with the weights that dqn began with

A server's id has none of "/", ":" and "=", so the texts are unambiguous; a side may have
them. A server's id alone still means its agents at random, as in runs that are older than the
other conditions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from muxrl.orchestrator.records.rows import EvaluationRow

_SIDE, _SHADOW, _UNTRAINED = "/", "=", ":untrained"


def untrained(key: str) -> str:
    """Returns the key of a condition with untrained weights instead of random actions."""
    return f"{key}{_UNTRAINED}"


def seen_by(server_id: str, conditions: Collection[str]) -> dict[str, str]:
    """Renames the conditions of an evaluation as if a server had acted, even if it was a shadow.

    Args:
        server_id: of a server that is or was a shadow, or was replaced by its shadow.
        conditions: keys of the evaluation's conditions; "": all agents act as learned.

    Returns:
        Recorded key to new key. If the server was a shadow in this evaluation, the condition in
        which it acted becomes "", and "" becomes the id of the server that acted in training.
        {}: the server was not evaluated.
    """
    for key in conditions:
        acting, _, shadow = key.partition(_SHADOW)
        if shadow == server_id and _SIDE not in key:
            names = {key: "", untrained(key): untrained(server_id), acting: server_id, "": acting}
            return {one: names[one] for one in conditions if one in names}
    return {one: one for one in conditions} if server_id in conditions else {}


@dataclass(frozen=True)
class Condition:
    """Which agents are replaced, and by what; all others act as learned."""

    server_id: str | None = None
    """The server whose agents are replaced; None: no agent is."""
    side: str = ""
    """The side that is replaced, see `muxrl.orchestrator.measure.sides`; "": all agents."""
    agents: tuple[str, ...] = ()
    """The agents of that side."""
    is_untrained: bool = False
    """Whether the agents act with the first weights of the server, or of its shadow."""
    shadow: str = ""
    """The server that acts in place of `server_id`; "": none."""

    @property
    def key(self) -> str | None:
        """The text that stands for the condition in records."""
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
