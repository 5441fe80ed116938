"""A policy of a trainer of one's own, from its ``network()`` to the greedy action."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from torch import Tensor, nn

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import Seating
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.graph import CannotExport, PolicyGraph, ServerRow, mask_space

NETWORK = "network"


class TrainerGraph(PolicyGraph):
    """See `PolicyGraph`; `trainer` has ``network()``, see `muxrl.servers.trainers.interface`."""

    scores = "scores"

    def __init__(
        self,
        trainer: Any,
        plan: ServerPlan,
        policy_id: str,
        seating: Seating,
        observing: Observing,
    ) -> None:
        name = type(trainer).__name__
        if getattr(trainer, "forms_teams", False):
            raise CannotExport(f"{name} acts for a team, and a file acts for one agent")
        if not callable(getattr(trainer, NETWORK, None)):
            raise CannotExport(
                f"{name} has no method {NETWORK}(), which returns the torch module behind act()"
            )
        try:
            network = trainer.network()
        except (Exception, SystemExit) as error:  # the user's code
            raise CannotExport(f"{name}.{NETWORK}(): {type(error).__name__}: {error}") from error
        if not isinstance(network, nn.Module):
            kind = type(network).__name__
            raise CannotExport(f"{name}.{NETWORK}(): expected a torch.nn.Module, got {kind}")
        super().__init__(network, plan, policy_id, seating, observing)

    def find_spaces(
        self, plan: ServerPlan, agent: AgentPlan, seating: Seating
    ) -> tuple[Space, Space | None]:
        return seating.network_space(agent), mask_space(agent)

    def initial_state(self) -> Any:
        return {}

    def decide(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor, Any]:
        seen, mask = batch[Columns.OBS], None
        if isinstance(seen, dict):
            seen, mask = seen[OBS], seen[ACTION_MASK]
        space, is_box = self.action_space, isinstance(self.action_space, Box)
        sizes = list(space.shape) if is_box else self.form.choices
        scores: Tensor = self.module(seen)
        if scores.shape[1:] != (sum(sizes),):
            raise CannotExport(
                f"{type(self.module).__name__} returns {list(scores.shape[1:])} for an "
                f"observation, and {[sum(sizes)]} is needed for {space}"
            )
        if is_box:
            return scores, scores, {}
        if mask is not None:
            scores = scores.masked_fill(mask == 0, UNAVAILABLE)
        chosen = [part.argmax(-1) for part in scores.split(list(sizes), -1)]
        is_one = isinstance(space, Discrete)
        return chosen[0] if is_one else torch.stack(chosen, -1), scores, {}

    def server_scores(self, module: Any, row: ServerRow, agent_id: str) -> None:
        """Returns None: a trainer's own are not known."""

    def _to_simulation(self, action: Tensor) -> Tensor:
        if not isinstance(self.action_space, Box):
            return super()._to_simulation(action)
        action = torch.minimum(torch.maximum(action, self._low), self._high)
        return action if self.form.shape is None else action.unflatten(-1, self.form.shape)
