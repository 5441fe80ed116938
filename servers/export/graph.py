"""A torch module to export, from the simulation's own observations to a policy's greedy action.

It includes what a server does before and after the network: flattening, masks, the agent's id, the
greedy choice, clipping and scaling to the action's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.spaces import ACTION_MASK_KEY, STATE_KEY, Box, DictSpace, Discrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, LAST_ACTION, NO_ACTION, OBS
from muxrl.servers.agents.log_probs import DISTRIBUTION
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.seat_actions import TeamChoices
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import flat_size, split_state, without
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.network import CannotExport, Network, masked
from muxrl.servers.export.ports import OBSERVATION, Port, feed_of, one_hot, ports_of
from muxrl.servers.export.reading import TorchReading
from muxrl.servers.trainers.interface import PolicySpec

ACTION = "action"
STATE_IN, STATE_OUT = "state_in.", "state_out."
_SEPARATE = "give each kind of member a policy of its own"


class ServerRow(NamedTuple):
    """One row that a server acted on, and its policy's outputs."""

    seat: Seat
    observation: Any
    state: Any
    """Recurrent state before the row; None: there was none."""
    outputs: Mapping[str, Any]


class PolicyGraph(nn.Module):
    """The policy of one or more agents, each of which acts by itself.

    Besides the observation it has these inputs, if the network reads them: ``agent_id``, the index
    of the agent among the agents in view, or the team's members; for a team's member
    ``last_action``, -1 before the first; and for a member with a recurrent state ``alive``, 0 if
    others of the team act and this member does not: its state then changes, too, whatever it
    observes.

    Members with different observations or actions share one network by padding. Then
    ``observation`` is the flattened observation with zeros behind it, and ``action_mask`` is 0 for
    actions that a member lacks.

    Attributes:
        inputs: in the order of `forward`'s arguments.
        outputs: names, in the order in which `forward` returns them.
        scores: name of the output with the scores that decide on the action.
        agents: by agent that the policy acts for: its value of the input ``agent_id``; None: there
            is no such input.
        reading: turns inputs into the network's observation.
        is_fed_while_absent: whether an agent's state changes at steps at which others act and the
            agent does not.

    Args:
        trainer: of the policy; has ``network()``, see `muxrl.servers.trainers.interface`.
        spec: the spec that the trainer was made for.
        plan: of the server.
        policy_id: of the policy.
        seating: of the algorithm.
        observing: reads observations on the server.

    Raises:
        CannotExport: the policy does not act in this way.
    """

    _low: Tensor
    _high: Tensor
    _combinations: Tensor
    _in_mask: Tensor
    """By combination: the places of its choices in a mask."""

    def __init__(
        self,
        trainer: Any,
        spec: PolicySpec,
        plan: ServerPlan,
        policy_id: str,
        seating: Seating,
        observing: Observing,
    ) -> None:
        super().__init__()
        self._plan, self._seating, self._observing = plan, seating, observing
        self._is_team, self._chooses = seating.forms_teams, seating.actions is TeamChoices
        self.network = Network(trainer, is_team=self._is_team)
        self.scores = self.network.scores_name
        self.is_fed_while_absent = self._is_team and bool(self.network.initial)
        self.agents: dict[str, int | None] = {
            agent_id: None for agent_id, a in plan.agents.items() if a.policy_id == policy_id
        }
        agent = plan.agents[next(iter(self.agents))]
        self.form = seating.action_form(agent)
        self.action_space: Any = self.form.space
        self._observes_state = seating.is_joint and split_state(agent.observation_space)[1]
        sent = agent.observation_space
        self.mask_space: Space | None = None
        if seating.follows_masks and isinstance(sent, DictSpace):
            self.mask_space = sent.spaces.get(ACTION_MASK_KEY)
        own = seating.own_space(agent)
        self._is_padded = False
        if self._is_team:
            own = self._find_padding(own, spec, agent)
        reading = self._find_reading()
        self.reading = TorchReading(own, _path_of(own, sent), reading, observing.frame_stack)
        if isinstance(self.action_space, Box):
            for name, bound in zip(("_low", "_high"), self.form.bounds, strict=True):
                self.register_buffer(name, torch.from_numpy(bound.copy()))
        elif self.form.is_one_choice:
            combinations = self.form.combinations
            first = np.cumsum([0, *self.form.choices[:-1]])
            self.register_buffer("_combinations", torch.from_numpy(combinations))
            self.register_buffer("_in_mask", torch.from_numpy(combinations + first))
        self.inputs = self._find_inputs()
        state = self._initial_state()
        if any(np.any(np.asarray(value)) for value in state.values()):
            raise CannotExport("its recurrent state does not begin with zeros")
        self._state_keys = list(state)
        self.inputs += [Port(STATE_IN + k, np.shape(v), "float32") for k, v in state.items()]
        self.outputs = [ACTION, self.scores, *(STATE_OUT + key for key in self._state_keys)]
        names = [*(port.name for port in self.inputs), *self.outputs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise CannotExport(
                f"two of its inputs and outputs are called {twice[0]!r}; give that part of the "
                f"observation another name (taken are {', '.join(names)})"
            )

    # --- inputs -------------------------------------------------------------------------

    def _find_padding(self, own: Space, spec: PolicySpec, agent: AgentPlan) -> Space:
        """Returns the space of a member's own observation as a file's caller gives it.

        Raises:
            CannotExport: members are not alike, and cannot be padded.
        """
        plan, seating = self._plan, self._seating
        acts, frame_stack = spec.action_space, plan.frame_stack
        obs_dim = spec.observation_space.shape[1] // frame_stack
        num_actions = int(acts.nvec[0]) if self._chooses else acts.shape[1]  # type: ignore[attr-defined, index]
        looks = {Seating().signature(agent_id, plan).key for agent_id in self.agents}
        sizes = flat_size(own), flat_size(self.form.space)
        self._is_padded = len(looks) > 1 or sizes != (obs_dim, num_actions)
        if self._is_padded and not self._chooses:
            raise CannotExport(
                "its members differ in their spaces, but a file has one observation and one "
                "action; " + _SEPARATE
            )
        if self._is_padded and frame_stack > 1:
            raise CannotExport(
                "its members differ in their spaces, so the file would take each observation "
                f"flattened and padded, but with frame_stack: {frame_stack} the server pads all "
                f"stacked observations as a whole; {_SEPARATE}"
            )
        forms = [seating.action_form(plan.agents[agent_id]) for agent_id in self.agents]
        causes = {
            _SEPARATE: self._is_padded,
            "set obs_last_action: false": LAST_ACTION in self.network.keys,
        }
        if not all(form.is_plain for form in forms) and any(causes.values()):
            raise CannotExport(
                "the file would write, or read, an action as a number from 0 on, but the "
                f"simulation's actions are {agent.action_space}; "
                + " and ".join(remedy for remedy, applies in causes.items() if applies)
            )
        as_sent = Observing(
            replace(plan, scale_observations="none", normalize_observations=False, frame_stack=1)
        )
        self._members = {a: seating.member(a, plan, as_sent) for a in self.agents}
        if not self._is_padded:
            return own
        self.action_space = Discrete(num_actions)
        self.mask_space = Box((num_actions,))
        return Box((obs_dim,))

    def _find_reading(self) -> Reading | None:
        """Returns how the server scales and normalises flattened observations; None: not at all.

        Raises:
            CannotExport: it does so differently for some agents.
        """
        readings = {
            agent_id: self._observing.reading(
                agent_id, self._seating.own_space(self._plan.agents[agent_id])
            )
            for agent_id in self.agents
        }
        (first, reading), *others = readings.items()
        for agent_id, other in readings.items():
            if self._is_padded and other is not None:
                raise CannotExport(
                    "its members differ in their spaces, so the file would take observations "
                    f"flattened and padded, but the observations of {agent_id!r} are scaled or "
                    f"normalised in a way of their own; {_SEPARATE}"
                )
        for agent_id, other in others:
            if (reading and reading.key) != (other and other.key):
                raise CannotExport(
                    f"it scales or normalises the observations of {first!r} and {agent_id!r} "
                    "differently; give each agent a policy of its own"
                )
        return reading

    def _find_inputs(self) -> list[Port]:
        """Returns all inputs but the recurrent state; sets the ids in `agents`, if any."""
        inputs = ports_of(self.reading.space, self.reading.path)
        if (size := self.reading.frame_stack) > 1:
            inputs = [replace(port, shape=(size, *port.shape)) for port in inputs]
        if self.mask_space is not None:
            self._masks = ports_of(self.mask_space, ACTION_MASK)
            inputs += self._masks
        if AGENT_ID in self.network.keys:
            for agent_id in self.agents:
                group = self._plan.agents[agent_id].group
                view = tuple(self._plan.agents) if group is None else self._plan.groups[group]
                self.agents[agent_id], self._num_in_view = view.index(agent_id), len(view)
            inputs.append(Port(AGENT_ID, (), "int64"))
        if LAST_ACTION in self.network.keys:
            inputs.append(Port(LAST_ACTION, (), "int64"))
        if self.is_fed_while_absent:
            inputs.append(Port(ALIVE, (), "float32"))
        return inputs

    def _initial_state(self) -> dict[str, Any]:
        """Returns the parts of an agent's initial recurrent state that the network changes."""
        if not self.network.initial:
            return {}
        given = {port.name: torch.from_numpy(port.zeros(1)) for port in self.inputs}
        try:
            with torch.inference_mode():
                after = self._act(given)[2]
        except CannotExport:
            raise
        except Exception as error:  # raised by the user's code
            raise self.network.failed(error) from error
        return {key: self.network.initial[key] for key in after}

    def feed(self, agent_id: str, values: Sequence[Any], last_action: Any) -> dict[str, np.ndarray]:
        """Returns the inputs for one agent at one step, ``[1, ...]`` each, without the state.

        Args:
            agent_id: the agent.
            values: its last observations as the simulation sends them, as many as are stacked;
                empty: the agent does not act now.
            last_action: its previous action, -1 at its first step.
        """
        feeds = [self._feed_one(agent_id, value, last_action) for value in values or [None]]
        if self.reading.frame_stack == 1 or not values:
            return feeds[-1]
        return {
            name: np.stack([f[name] for f in feeds], axis=1) if name in self.reading.names else new
            for name, new in feeds[-1].items()
        }

    def _feed_one(self, agent_id: str, value: Any, last_action: Any) -> dict[str, np.ndarray]:
        """Returns the inputs for one observation; None: the agent does not act now."""
        fed = {p.name: p.zeros(1) for p in self.inputs if not p.name.startswith(STATE_IN)}
        extras = {
            AGENT_ID: self.agents[agent_id],
            LAST_ACTION: last_action,
            ALIVE: value is not None,
        }
        for name in (fed.keys() & extras.keys()) - set(self.reading.names):
            fed[name][:] = extras[name]
        if value is not None:
            seen = self._padded if self._is_padded else self._as_sent
            fed |= seen(agent_id, value)
        return fed

    def _as_sent(self, agent_id: str, value: Any) -> dict[str, np.ndarray]:
        fed = {}
        if self._observes_state:
            value = without(value, STATE_KEY)
        if self.mask_space is not None:
            fed = feed_of(self.mask_space, ACTION_MASK, value[ACTION_MASK_KEY])
            value = without(value, ACTION_MASK_KEY)
        return feed_of(self.reading.space, self.reading.path, value) | fed

    def _padded(self, agent_id: str, value: Any) -> dict[str, np.ndarray]:
        member = self._members[agent_id]
        flat, num_actions = member.read(value).ravel(), flat_size(member.form.kind)
        obs, mask = (port.zeros(1) for port in self.inputs[:2])
        obs[0, : len(flat)] = flat
        mask[0, :num_actions] = member.mask(value) if member.is_masked else 1.0
        return {OBSERVATION: obs, ACTION_MASK: mask}

    # --- acting -------------------------------------------------------------------------

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns the greedy action, its scores and the next recurrent state."""
        given = {port.name: value for port, value in zip(self.inputs, values, strict=True)}
        action, scores, after = self._act(given)
        return self._to_simulation(action), scores, *(after[key] for key in self._state_keys)

    def _act(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns the network's greedy actions, scores ``[B, k]``, and the next state."""
        seen = {OBS: self.reading(given)}
        if self._is_team:
            seen[OBS] = seen[OBS].flatten(1)
        if AGENT_ID in given:
            seen[AGENT_ID] = one_hot(given[AGENT_ID], self._num_in_view)
        if LAST_ACTION in given:
            seen[LAST_ACTION] = given[LAST_ACTION].float()
        if ALIVE in self.network.keys:  # an agent that acts is present
            seen[ALIVE] = torch.ones(seen[OBS].shape[0], 1)
        if ALIVE in given:
            alive = given[ALIVE]
            seen[OBS] = seen[OBS] * alive.unsqueeze(-1)
            if LAST_ACTION in given:
                is_here = alive > 0
                seen[LAST_ACTION] = torch.where(is_here, seen[LAST_ACTION], float(NO_ACTION))
        before = {n.removeprefix(STATE_IN): v for n, v in given.items() if n.startswith(STATE_IN)}
        space = self.action_space
        scores, after = self.network.ask(seen, before, flat_size(space), space)
        if isinstance(space, Box):
            greedy = self.network.greedy
            return scores if greedy is None else greedy(scores), scores, after
        allowed = scores
        if self.mask_space is not None:
            allowed = masked(scores, self._mask(given))
        if isinstance(space, Discrete):  # a mixer's values stay unmasked
            return allowed.argmax(-1), scores if self._chooses else allowed, after
        chosen = [part.argmax(-1) for part in allowed.split(list(space.nvec), -1)]
        return torch.stack(chosen, -1), allowed, after

    def _mask(self, given: dict[str, Tensor]) -> Tensor:
        """Returns masks ``[B, n]``, above 0 for available actions, as `ActionForm.read_masks`."""
        parts = [given[port.name].reshape(-1, math.prod(port.shape)) for port in self._masks]
        mask = torch.cat([part.float() for part in parts], -1)
        return mask[:, self._in_mask].amin(-1) if self.form.is_one_choice else mask

    def _to_simulation(self, action: Tensor) -> Tensor:
        """Returns actions as the simulation takes them, as `ActionForm.write_rows`."""
        space, kind, shape = self.action_space, self.form.kind, self.form.shape
        if isinstance(space, Box):
            if self.form.has_bounds and self.form.is_scaled:
                action = self._low + (action + 1.0) * (self._high - self._low) / 2.0
            if self.form.has_bounds or not self.form.is_scaled:
                action = torch.minimum(torch.maximum(action, self._low), self._high)
            action = action.to(getattr(torch, space.dtype))
            return action if shape is None else action.unflatten(-1, shape)
        if isinstance(kind, Discrete):
            return action.to(torch.int64) + kind.start
        chosen = self._combinations[action] if self.form.is_one_choice else action.to(torch.int64)
        chosen = chosen + torch.from_numpy(self.form.first)
        if not isinstance(kind, Box):
            return chosen
        return chosen.unflatten(-1, kind.shape).to(getattr(torch, kind.dtype))

    def server_scores(self, row: ServerRow, agent_id: str) -> np.ndarray:
        """Returns the scores behind an action of the server, ``[k]``.

        These are the recorded scores, or else the network's outputs for the server's observation.

        Args:
            row: the row that the server acted on.
            agent_id: one of the row's agents.
        """
        recorded = row.outputs.get(DISTRIBUTION)
        if recorded is not None and not self._is_team:
            return np.asarray(recorded)
        read = row.observation if isinstance(row.observation, dict) else {OBS: row.observation}
        state: Mapping[str, Any] = row.state if self.network.initial and row.state else {}
        if self._is_team:
            place = row.seat.members.index(agent_id)
            ids = np.eye(len(row.seat.members), dtype=np.float32)
            own = {k: read[k][place] for k in (OBS, LAST_ACTION, ACTION_MASK) if k in read}
            read = {**own, AGENT_ID: ids[place]}
            state = {key: value[place] for key, value in state.items()}
        seen, before = (
            {key: torch.from_numpy(np.array(part)[None]) for key, part in parts.items()}
            for parts in (read, state)
        )
        with torch.inference_mode():
            space = self.action_space
            scores, _ = self.network.ask(seen, before, flat_size(space), space)
            if ACTION_MASK in seen and not self._chooses:
                scores = masked(scores, seen[ACTION_MASK])
        return scores[0].numpy()


def _path_of(own: Space, space: Space) -> str:
    """Returns the key of the part `own` of a Dict, if the Dict has only mask and state besides.

    Otherwise "".
    """
    parts = space.spaces.items() if isinstance(space, DictSpace) else ()
    return next((key for key, part in parts if part is own), "")
