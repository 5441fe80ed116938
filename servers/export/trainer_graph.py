"""A policy of a trainer, from its ``network()`` to the greedy action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, LAST_ACTION, NO_ACTION, OBS
from muxrl.servers.agents.log_probs import DISTRIBUTION
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.seat_actions import TeamChoices
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.spaces import flat_size
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.graph import STATE_IN, CannotExport, PolicyGraph, ServerRow, mask_space
from muxrl.servers.export.ports import OBSERVATION, Port, one_hot
from muxrl.servers.trainers.interface import PolicySpec

NETWORK = "network"


class TrainerGraph(PolicyGraph):
    """See `PolicyGraph`; `trainer` has ``network()``, see `muxrl.servers.trainers.interface`.

    Inputs beside the observation, as far as the network has them: ``agent_id``, which of the agents
    in view, or of the team's members, it is; of a member ``last_action``, -1 before the first; and
    of one with a recurrent state ``alive``, 0 where others of the team act and this member does
    not: its state goes on then, whatever it observes.

    Members that observe or do not the same share one network by padding. Then ``observation`` is
    the flattened one, zeros behind it, and ``action_mask`` is 0 for actions that a member lacks.

    Args:
        trainer: of the policy.
        spec: what it was made for.
        plan, policy_id, seating, observing: see `PolicyGraph`.
    """

    def __init__(
        self,
        trainer: Any,
        spec: PolicySpec,
        plan: ServerPlan,
        policy_id: str,
        seating: Seating,
        observing: Observing,
    ) -> None:
        name = type(trainer).__name__
        self._is_team = seating.forms_teams
        if not callable(getattr(trainer, NETWORK, None)):
            if self._is_team:
                raise CannotExport(f"{name} acts for a team, and a file acts for one agent")
            raise CannotExport(
                f"{name} has no method {NETWORK}(), which returns the torch module behind act()"
            )
        self._spec, self._name = spec, f"{name}.{NETWORK}()"
        self._keys = [k for k in getattr(trainer, "acting_keys", (OBS,)) if k != ACTION_MASK]
        self._greedy = getattr(trainer, "greedy", None)
        self.scores = getattr(trainer, "scores_name", "scores")
        self._chooses = seating.actions is TeamChoices
        try:
            network = trainer.network()
            state = trainer.initial_state() if hasattr(trainer, "initial_state") else {}
        except (Exception, SystemExit) as error:  # the user's code
            raise self._failed(error) from error
        if not isinstance(network, nn.Module):
            kind = type(network).__name__
            raise CannotExport(f"{self._name}: expected a torch.nn.Module, got {kind}")
        self._initial = {k: np.asarray(v)[0] if self._is_team else v for k, v in state.items()}
        """Of one agent, also of a team's member."""
        super().__init__(network, plan, policy_id, seating, observing)

    def _failed(self, error: BaseException) -> CannotExport:
        return CannotExport(f"{self._name}: {type(error).__name__}: {error}")

    # --- inputs -------------------------------------------------------------------------

    @property
    def is_fed_while_absent(self) -> bool:
        return self._is_team and bool(self._initial)

    def find_spaces(
        self, plan: ServerPlan, agent: AgentPlan, seating: Seating
    ) -> tuple[Space, Space | None]:
        mask = mask_space(agent) if seating.follows_masks else None
        self._is_padded = False
        if not self._is_team:
            return seating.network_space(agent), mask
        own, acts = seating.own_space(agent), self._spec.action_space
        obs_dim = self._spec.observation_space.shape[1] // self.frame_stack
        num_actions = int(acts.nvec[0]) if self._chooses else acts.shape[1]  # type: ignore[attr-defined, index]
        looks = {Seating().signature(agent_id, plan).key for agent_id in self.agents}
        sizes = flat_size(own), flat_size(self.form.space)
        self._is_padded = len(looks) > 1 or sizes != (obs_dim, num_actions)
        if self._is_padded and not self._chooses:
            raise CannotExport(
                "its members are not alike, and one file has one observation and one action; give "
                "members that differ policies of their own"
            )
        self._check_members(plan, agent, seating)
        as_sent = Observing(plan.agents)
        self._members = {a: seating.member(a, plan, as_sent) for a in self.agents}
        if not self._is_padded:
            return own, mask
        self.action_space = Discrete(num_actions)
        return Box((obs_dim,)), Box((num_actions,))

    def _check_members(self, plan: ServerPlan, agent: AgentPlan, seating: Seating) -> None:
        if self._is_padded and self.frame_stack > 1:
            raise CannotExport(
                "its members are not alike, so that their file takes observations flattened and "
                f"padded, and these are {self.frame_stack} at once (frame_stack), padded as a "
                "whole; give members that differ policies of their own"
            )
        forms = [seating.action_form(plan.agents[agent_id]) for agent_id in self.agents]
        causes = {
            "give members that differ policies of their own": self._is_padded,
            "set obs_last_action: false": LAST_ACTION in self._keys,
        }
        if not all(form.is_plain for form in forms) and any(causes.values()):
            raise CannotExport(
                "its file would choose, or be told, an action by its number from 0 on, which for "
                f"{agent.action_space} is none of the simulation's; "
                + " and ".join(mend for mend, applies in causes.items() if applies)
            )

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
        if AGENT_ID in self._keys:
            for agent_id in self.agents:
                group = plan.agents[agent_id].group
                view = tuple(plan.agents) if group is None else plan.groups[group]
                self.agents[agent_id], self._num_in_view = view.index(agent_id), len(view)
            inputs.append(Port(AGENT_ID, (), "int64"))
        if LAST_ACTION in self._keys:
            inputs.append(Port(LAST_ACTION, (), "int64"))
        if self.is_fed_while_absent:
            inputs.append(Port(ALIVE, (), "float32"))
        return inputs

    def initial_state(self) -> Any:
        """Returns the recurrent state of one agent, as far as the network changes it: a critic's,
        on which no action depends, it does not."""
        if not self._initial:
            return {}
        given = {port.name: torch.from_numpy(port.zeros(1)) for port in self.inputs}
        try:
            with torch.inference_mode():
                after = self.act(given)[2]
        except CannotExport:
            raise
        except Exception as error:  # the user's code
            raise self._failed(error) from error
        return {key: self._initial[key] for key in after}

    def feed_one(self, agent_id: str, value: Any, last_action: Any) -> dict[str, np.ndarray]:
        if not self._is_team:
            return super().feed_one(agent_id, value, last_action)
        fed = {p.name: p.zeros(1) for p in self.inputs if not p.name.startswith(STATE_IN)}
        if value is not None and self._is_padded:
            fed.update(self._padded(agent_id, value))
        elif value is not None:
            fed.update(super().feed_one(agent_id, value, last_action))
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

    # --- acting -------------------------------------------------------------------------

    def act(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
        seen = {OBS: self.flatten(given)}
        if self._is_team:
            seen[OBS] = seen[OBS].flatten(1)
        if AGENT_ID in given:
            seen[AGENT_ID] = one_hot(given[AGENT_ID], self._num_in_view)
        if LAST_ACTION in given:
            seen[LAST_ACTION] = given[LAST_ACTION].float()
        if ALIVE in self._keys:  # an agent that is asked
            seen[ALIVE] = torch.ones(seen[OBS].shape[0], 1)
        if ALIVE in given:
            alive = given[ALIVE]
            seen[OBS] = seen[OBS] * alive.unsqueeze(-1)
            if LAST_ACTION in given:
                is_here = alive > 0
                seen[LAST_ACTION] = torch.where(is_here, seen[LAST_ACTION], float(NO_ACTION))
        state = {
            name.removeprefix(f"{STATE_IN}."): value
            for name, value in given.items()
            if name.startswith(f"{STATE_IN}.")
        }
        scores, after = self._ask(seen, state)
        if isinstance(self.action_space, Box):
            return self._actions(scores), scores, after
        masked = scores
        if self.mask_space is not None:
            masked = self._masked(scores, given[ACTION_MASK])
        if isinstance(self.action_space, Discrete):
            return masked.argmax(-1), self._shown(scores, masked), after
        chosen = [part.argmax(-1) for part in masked.split(list(self.action_space.nvec), -1)]
        return torch.stack(chosen, -1), masked, after

    def _ask(
        self, seen: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the network's scores and its next state.

        Args:
            seen: each part of an observation, ``[B, ...]``.
            state: before it; what is lacking is as at the beginning.
        """
        parts = [seen[key] for key in self._keys]
        after: dict[str, Tensor] = {}
        scores: Tensor
        if self._initial:
            num = seen[OBS].shape[0]  # `len` would make it a constant
            start = {k: torch.as_tensor(v).expand(num, *v.shape) for k, v in self._initial.items()}
            before = {**start, **state}
            scores, after = self.module(*parts, before)
            after = {key: value for key, value in after.items() if value is not before[key]}
        else:
            scores = self.module(*parts)
        space = self.action_space
        width = scores.shape[-1] if self._greedy else flat_size(space)
        if scores.shape[1:] != (width,):
            raise CannotExport(
                f"{type(self.module).__name__} returns {list(scores.shape[1:])} for an "
                f"observation, and {[width]} is needed for {space}"
            )
        return scores, after

    def _actions(self, scores: Tensor) -> Tensor:
        """Returns the actions of a Box."""
        return scores if self._greedy is None else self._greedy(scores)

    def _masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 0, UNAVAILABLE)

    def _shown(self, scores: Tensor, masked: Tensor) -> Tensor:
        """Returns the scores that the file tells: a team's mixer has values of all actions."""
        return scores if self._chooses else masked

    def server_scores(self, row: ServerRow, agent_id: str) -> np.ndarray | None:
        """Returns those that were recorded; else what the network says of what the server read."""
        recorded = row.outputs.get(DISTRIBUTION)
        if recorded is not None and not self._is_team:
            return np.asarray(recorded)
        read = row.observation if isinstance(row.observation, dict) else {OBS: row.observation}
        state: Mapping[str, Any] = row.state if self._initial and row.state else {}
        if self._is_team:
            place = row.seat.members.index(agent_id)
            ids = np.eye(len(row.seat.members), dtype=np.float32)
            own = {k: read[k][place] for k in (OBS, LAST_ACTION, ACTION_MASK) if k in read}
            read = {**own, AGENT_ID: ids[place]}
            state = {key: value[place] for key, value in state.items()}
        seen = {key: torch.from_numpy(np.array(part)[None]) for key, part in read.items()}
        before = {key: torch.from_numpy(np.array(part)[None]) for key, part in state.items()}
        with torch.inference_mode():
            scores, _ = self._ask(seen, before)
            if ACTION_MASK in seen and not self._chooses:
                scores = self._masked(scores, seen[ACTION_MASK])
        found: np.ndarray = scores[0].numpy()
        return found
