"""The policies of a learning server in the form of a checkpoint, for pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxrl.servers.checkpoints.checkpoint import Checkpoint, note_of
from muxrl.servers.config import ServerPlan


@dataclass(frozen=True)
class LiveCheckpoint(Checkpoint):
    """The policies of a learning server as a checkpoint that is not on disk; made by `of_plan`.

    Attributes:
        weights: by policy, the weights that it acts with.
        observations: statistics of observations; see `Observing.get_state`.
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
        """Returns the checkpoint of a server; `about` adds to its note, such as ``env_steps``."""
        note = {**note_of(plan), **about}
        return cls(Path(f"servers.{plan.server_id}"), note, weights, observations)

    def read_state(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def read_normalization(self) -> dict[str, Any]:
        return {"observations": self.observations}
