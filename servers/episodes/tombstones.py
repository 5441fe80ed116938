"""Episodes that are over: how each was answered last, for a client that asks again."""

from __future__ import annotations

from collections import OrderedDict

from muxrl.protocol.messages import Aborted, Ended
from muxrl.servers.config import ServerPlan

MAX_TOMBSTONES, _MAX_TOLD = 100_000, 1_000_000
"""Ended episodes that are remembered, and returns of agents in their answers, some 65 MB; a client
that lost an answer asks again before so many more have ended. Episodes of a few steps end a
thousand times a second."""


class Tombstones(OrderedDict[str, tuple[float, Ended | Aborted]]):
    """By episode id: when it was buried, and its answer; the oldest comes first."""

    def bury(self, episode_id: str, reply: Ended | Aborted, now: float, plan: ServerPlan) -> None:
        """Adds an episode of a server; the oldest of too many is forgotten."""
        self[episode_id] = (now, reply)
        most = min(MAX_TOMBSTONES, _MAX_TOLD // max(1, len(plan.agents)))
        if len(self) > max(most, plan.limits.max_episodes):
            self.popitem(last=False)

    def answer_of(self, episode_id: str) -> Ended | Aborted | None:
        """Returns the answer of an episode that is over; None: it is not known."""
        return self.get(episode_id, (0.0, None))[1]

    def expire(self, before: float) -> None:
        """Forgets those that were buried before then."""
        while self:
            episode_id, (buried_at, _) = next(iter(self.items()))
            if buried_at >= before:
                break
            del self[episode_id]
