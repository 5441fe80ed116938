"""The network that a team's members share, as a graph to export: each member acts by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, LAST_ACTION, OBS
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.spaces import flat_size
from muxrl.servers.algorithms.qmix.rl_module import HIDDEN
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.graph import STATE_IN, CannotExport, PolicyGraph, ServerRow, mask_space
from muxrl.servers.export.ports import OBSERVATION, Port, one_hot


class MemberGraph(PolicyGraph):
    """One member of a team: its values and its greedy action.

    Inputs beside the observation, as far as the network has them: ``agent_id``, the member's row in
    its team; ``last_action``, -1 before the first; and with a GRU ``alive``, 0 where others of the
    team act and this member does not: its state goes on then, whatever it observes.

    Members that observe or do not the same share one network by padding. Then ``observation`` is
    the flattened one, zeros behind it, and ``action_mask`` is 0 for actions that a member lacks.
    """

    scores = "q_values"

    @property
    def is_fed_while_absent(self) -> bool:
        return bool(self.module.is_recurrent)

    def find_spaces(
        self, plan: ServerPlan, agent: AgentPlan, seating: Seating
    ) -> tuple[Space, Space | None]:
        own = seating.own_space(agent)
        obs_dim = self.module.observation_space[OBS].shape[1] // self.frame_stack
        num_actions = self.module.num_actions
        looks = {Seating().signature(agent_id, plan).key for agent_id in self.agents}
        forms = [seating.action_form(plan.agents[agent_id]) for agent_id in self.agents]
        sizes = flat_size(own), flat_size(self.action_space)
        as_sent = Observing(plan.agents)
        self._members = {a: seating.member(a, plan, as_sent) for a in self.agents}
        self._is_padded = len(looks) > 1 or sizes != (obs_dim, num_actions)
        if self._is_padded and self.frame_stack > 1:
            raise CannotExport(
                "its members are not alike, so that their file takes observations flattened and "
                f"padded, and these are {self.frame_stack} at once (frame_stack), padded as a "
                "whole; give members that differ policies of their own"
            )
        causes = {
            "give members that differ policies of their own": self._is_padded,
            "set obs_last_action: false": self.module.obs_last_action,
        }
        if not all(form.is_plain for form in forms) and any(causes.values()):
            raise CannotExport(
                "its file would choose, or be told, an action by its number from 0 on, which for "
                f"{agent.action_space} is none of the simulation's; "
                + " and ".join(mend for mend, applies in causes.items() if applies)
            )
        if self._is_padded:
            self.action_space = Discrete(num_actions)
            return Box((obs_dim,)), Box((num_actions,))
        return own, mask_space(agent)

    def find_reading(
        self, plan: ServerPlan, observing: Observing, seating: Seating
    ) -> Reading | None:
        if not self._is_padded:
            return super().find_reading(plan, observing, seating)
        for agent_id in self.agents:
            own = seating.own_space(plan.agents[agent_id])
            if observing.reading(agent_id, own) is not None:
                raise CannotExport(
                    f"its members are not alike, so that their file takes observations flattened "
                    f"and padded, and those of {agent_id!r} are scaled or normalised in a way of "
                    "their own; give members that differ policies of their own"
                )
        return None

    def more_inputs(self, plan: ServerPlan) -> list[Port]:
        inputs = []
        if self.module.obs_agent_id:
            self.number_members(plan)
            inputs.append(Port(AGENT_ID, (), "int64"))
        if self.module.obs_last_action:
            inputs.append(Port(LAST_ACTION, (), "int64"))
        if self.module.is_recurrent:
            inputs.append(Port(ALIVE, (), "float32"))
        return inputs

    def initial_state(self) -> Any:
        return {HIDDEN: np.zeros(self.module.hidden_dim)} if self.module.is_recurrent else {}

    def feed_one(self, agent_id: str, value: Any, last_action: Any) -> dict[str, np.ndarray]:
        fed = {
            port.name: port.zeros(1) for port in self.inputs if not port.name.startswith(STATE_IN)
        }
        if value is not None:
            own = (
                self._padded(agent_id, value)
                if self._is_padded
                else super().feed_one(agent_id, value, last_action)
            )
            fed.update(own)
        extras = {
            AGENT_ID: self.agents[agent_id],
            LAST_ACTION: last_action,
            ALIVE: value is not None,
        }
        for name, extra in extras.items():
            if name in fed:
                fed[name][:] = extra
        return fed

    def _padded(self, agent_id: str, value: Any) -> dict[str, np.ndarray]:
        member = self._members[agent_id]
        flat, num_actions = member.read(value).ravel(), flat_size(member.form.kind)
        obs, mask = (port.zeros(1) for port in self.inputs[:2])
        obs[0, : len(flat)] = flat
        mask[0, :num_actions] = member.mask(value) if member.is_masked else 1.0
        return {OBSERVATION: obs, ACTION_MASK: mask}

    def act(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
        module = self.module
        obs = self.flatten(given).flatten(1)
        alive = given[ALIVE].unsqueeze(-1) if module.is_recurrent else 1.0
        parts = [obs * alive]
        if module.obs_last_action:
            parts.append(one_hot(given[LAST_ACTION], module.num_actions) * alive)
        if module.obs_agent_id:
            parts.append(one_hot(given[AGENT_ID], module.num_members))
        values, h = module.agent.unroll(
            torch.cat(parts, -1).unsqueeze(0), given.get(f"{STATE_IN}.{HIDDEN}")
        )
        values = values[0]
        available = values
        if self.mask_space is not None:
            available = torch.where(given[ACTION_MASK] > 0, values, -torch.inf)
        return available.argmax(-1), values, {} if h is None else {HIDDEN: h}

    def server_scores(self, module: Any, row: ServerRow, agent_id: str) -> np.ndarray:
        obs = {key: row.observation[key][None] for key in (OBS, LAST_ACTION)}
        h = None
        if module.is_recurrent:
            state = row.state or {HIDDEN: np.asarray(module.get_initial_state()[HIDDEN])}
            h = state[HIDDEN][None]
        values: np.ndarray = module.step_in_numpy(obs, h)[0]
        return values[0, row.seat.members.index(agent_id)]
