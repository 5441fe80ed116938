"""The policies of a server that learns, as its checkpoint would have them: for pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.servers.checkpoints.checkpoint import Checkpoint, note_of
from muxrl.servers.config import ServerPlan

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec


@dataclass(frozen=True)
class LiveCheckpoint(Checkpoint):
    """The policies of a server that learns, as a checkpoint that nobody has written. Make one with
    `of_plan`.

    Attributes:
        modules: by policy, what its module is built from, and its state; of a trainer of one's own
            None, and its weights.
        observations: statistics of what is observed; see `Observing.get_state`.
    """

    modules: Mapping[str, tuple[RLModuleSpec | None, Mapping[str, Any]]]
    observations: Mapping[str, Any]

    @classmethod
    def of_plan(
        cls,
        plan: ServerPlan,
        modules: Mapping[str, tuple[RLModuleSpec | None, Mapping[str, Any]]],
        observations: Mapping[str, Any],
        **about: Any,
    ) -> LiveCheckpoint:
        """Returns one of a server; its note says ``env_steps``, say, beside what the plan does."""
        note = {**note_of(plan), **about}
        return cls(Path(f"servers.{plan.server_id}"), note, modules, observations)

    def load_modules(self, *, only_acting: bool = True) -> dict[str, RLModule]:
        modules = {name: spec.build() for name, (spec, _) in self.modules.items() if spec}
        for name, module in modules.items():
            module.set_state(dict(self.modules[name][1]))
        return modules

    def read_state(self) -> dict[str, Any]:
        return {"weights": {name: weights for name, (_, weights) in self.modules.items()}}

    def read_normalization(self) -> dict[str, Any]:
        return {"observations": self.observations}
