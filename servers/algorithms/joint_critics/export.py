"""The actor that a team's members share, as a graph to export: each member acts by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.spaces import Space
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, OBS
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.spaces import flat_size
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.graph import CannotExport, PolicyGraph, ServerRow, mask_space
from muxrl.servers.export.ports import Port, one_hot


class MemberActorGraph(PolicyGraph):
    """One member of a team: its action, and what its actor gives before ``tanh``.

    These are means of the action's dimensions, and behind them log-deviations if there are any.

    Input beside the observation, with ``obs_agent_id``: ``agent_id``, the member's row in its team.
    Members that observe or do not the same are padded, and no file is made of them.
    """

    def find_spaces(
        self, plan: ServerPlan, agent: AgentPlan, seating: Seating
    ) -> tuple[Space, Space | None]:
        own = seating.own_space(agent)
        looks = {Seating().signature(agent_id, plan).key for agent_id in self.agents}
        sizes = flat_size(own), flat_size(self.action_space)
        obs_dim = self.module.observation_space[OBS].shape[1] // self.frame_stack
        padded = obs_dim, self.module.action_dim
        if len(looks) > 1 or sizes != padded:
            raise CannotExport(
                "its members are not alike, and one file has one observation and one action; give "
                "members that differ policies of their own"
            )
        return own, mask_space(agent)

    def more_inputs(self, plan: ServerPlan) -> list[Port]:
        if not self.module.obs_agent_id:
            return []
        self.number_members(plan)
        return [Port(AGENT_ID, (), "int64")]

    def act(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
        parts = [self.flatten(given).flatten(1)]
        if AGENT_ID in given:
            parts.append(one_hot(given[AGENT_ID], self.module.num_members))
        logits: Tensor = self.module.actor(torch.cat(parts, -1))
        if self.module.has_choices:
            if self.mask_space is not None:
                logits = torch.where(given[ACTION_MASK] > 0, logits, UNAVAILABLE)
            return logits.argmax(-1), logits, None
        return torch.tanh(logits[:, : self.module.action_dim]), logits, None

    def server_scores(self, module: Any, row: ServerRow, agent_id: str) -> np.ndarray:
        with torch.inference_mode():
            logits = module.actor_outputs(torch.from_numpy(row.observation[OBS][None]))
            if ACTION_MASK in row.observation:
                available = torch.from_numpy(row.observation[ACTION_MASK][None]) > 0
                logits = torch.where(available, logits, UNAVAILABLE)
        scores: np.ndarray = logits[0, row.seat.members.index(agent_id)].numpy()
        return scores
