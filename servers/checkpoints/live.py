"""The policies of a server that learns, as its checkpoint would have them: for pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxrl.servers.checkpoints.checkpoint import Checkpoint, note_of
from muxrl.servers.config import ServerPlan


@dataclass(frozen=True)
class LiveCheckpoint(Checkpoint):
    """The policies of a server that learns, as a checkpoint that nobody has written. Make one with
    `of_plan`.

    Attributes:
        weights: by policy, what it acts with.
        observations: statistics of what is observed; see `Observing.get_state`.
    """

    weights: Mapping[str, Any]
    observations: Mapping[str, Any]

    @classmethod
    def of_plan(
        cls,
        plan: ServerPlan,
        weights: Mapping[str, Any],
        observations: Mapping[str, Any],
        **about: Any,
    ) -> LiveCheckpoint:
        """Returns one of a server; its note says ``env_steps``, say, besides what the plan does."""
        note = {**note_of(plan), **about}
        return cls(Path(f"servers.{plan.server_id}"), note, weights, observations)

    def read_state(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def read_normalization(self) -> dict[str, Any]:
        return {"observations": self.observations}
