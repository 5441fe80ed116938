"""A policy from the simulation's own values to its actions, as one torch module to export.

What a server does before and after a network is inside: flattening, masks, the agent's id, the
greedy choice, clipping and scaling to the action's bounds. A subclass knows the network.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol import spaces as plain
from muxrl.protocol.spaces import ACTION_MASK_KEY, DictSpace, Space
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID
from muxrl.servers.agents.observing import Observing, Reading
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import (
    split_state,
    without_mask,
    without_state,
)
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.export.ports import Port, feed_of, flatten, ports_of

ACTION = "action"
STATE_IN, STATE_OUT = "state_in", "state_out"


class CannotExport(ValueError):
    """A policy cannot become a file; the sentence says why."""


class ServerRow(NamedTuple):
    """What a server asked and answered in one row."""

    seat: Seat
    observation: Any
    state: Any
    """Recurrent state before it; None: it had none."""
    outputs: Mapping[str, Any]


class PolicyGraph(nn.Module):
    """The policy of agents, each of which acts by itself.

    Attributes:
        inputs: in the order of `forward`'s arguments.
        outputs: in the order of what it returns.
        agents: those that the policy acts for, each with its value of the input ``agent_id``, if
            there is one.
        path: key of the part of an observation that the network reads; "": all of it.
        reading: how that is scaled and normalised; None: not at all.
        frame_stack: how many observations it reads at once. Above 1 the observation's inputs have a
            dimension behind the batch's, of frames, the oldest first.

    Args:
        module: the network.
        plan: of its server.
        policy_id: its policy.
        seating: the algorithm's.
        observing: how the server reads observations.

    Raises:
        CannotExport: it does not act in this way.
    """

    scores: str = "logits"
    """Name of the output that decides on the action."""

    _low: Tensor
    _high: Tensor
    _combinations: Tensor
    _offset: Tensor
    _width: Tensor
    _mean: Tensor
    _deviation: Tensor
    _limit: Tensor

    def __init__(
        self,
        module: nn.Module,
        plan: ServerPlan,
        policy_id: str,
        seating: Seating,
        observing: Observing,
    ) -> None:
        super().__init__()
        self.module: Any = module
        self.frame_stack = observing.frame_stack
        self.agents: dict[str, int | None] = {
            agent_id: None for agent_id, a in plan.agents.items() if a.policy_id == policy_id
        }
        agent = plan.agents[next(iter(self.agents))]
        self.form = seating.action_form(agent)
        self.action_space: Any = self.form.space
        self._observes_state = seating.is_joint and split_state(agent.observation_space)[1]
        own, mask = self.find_spaces(plan, agent, seating)
        self.path = _path_of(own, agent.observation_space)
        self.reading = self.find_reading(plan, observing, seating)
        self._add_constants()
        self.observation_space, self.mask_space = own, mask
        if self.form.is_one_choice and mask is not None:
            raise CannotExport(
                f"its action mask is of the parts of {agent.action_space}, and its network chooses "
                "one of their combinations"
            )
        self.inputs = ports_of(self.observation_space, self.path)
        self._seen = [port.name for port in self.inputs]
        if self.frame_stack > 1:
            self.inputs = [replace(p, shape=(self.frame_stack, *p.shape)) for p in self.inputs]
        if self.mask_space is not None:
            self.inputs += ports_of(self.mask_space, ACTION_MASK)
        self.inputs += self.more_inputs(plan)
        state = paths_of(self.initial_state())
        if any(np.any(np.asarray(value)) for value in state.values()):
            raise CannotExport("its recurrent state does not begin with zeros")
        self.state_paths = list(state)
        self.inputs += [
            Port(STATE_IN + path, tuple(np.shape(value)), "float32")
            for path, value in state.items()
        ]
        self.outputs = [ACTION, self.scores, *(STATE_OUT + path for path in self.state_paths)]
        names = [*(port.name for port in self.inputs), *self.outputs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise CannotExport(
                f"two of its inputs and outputs are called {twice[0]!r}; give that part of the "
                f"observation another name (taken are {', '.join(names)})"
            )
        if isinstance(self.action_space, plain.Box):
            for name, bound in zip(("_low", "_high"), self.form.bounds, strict=True):
                self.register_buffer(name, torch.from_numpy(bound.copy()))
        elif self.form.is_one_choice:
            self.register_buffer("_combinations", torch.from_numpy(self.form.combinations))

    def _add_constants(self) -> None:
        if self.reading is None:
            return
        constants: dict[str, np.ndarray] = {}
        if self.reading.scale is not None:
            constants |= {"_offset": self.reading.scale.low, "_width": self.reading.scale.width}
        if self.reading.normalizer is not None:
            names = ("_mean", "_deviation", "_limit")
            constants |= dict(zip(names, self.reading.normalizer.constants(), strict=True))
        for name, constant in constants.items():
            self.register_buffer(name, torch.from_numpy(np.array(constant)))

    # --- what an algorithm may do in its own way ----------------------------------------

    @property
    def is_fed_while_absent(self) -> bool:
        """Whether an agent's state goes on at steps at which others act and it does not."""
        return False

    def find_spaces(
        self, plan: ServerPlan, agent: AgentPlan, seating: Seating
    ) -> tuple[Space, Space | None]:
        """Returns the space of what the network flattens, and the mask's, None if it has none."""
        return seating.network_space(agent), mask_space(agent)

    def find_reading(
        self, plan: ServerPlan, observing: Observing, seating: Seating
    ) -> Reading | None:
        """Returns how the server scales and normalises what the network flattens; None: not at all.

        Raises:
            CannotExport: it does so in another way for each agent.
        """
        readings = {
            agent_id: observing.reading(agent_id, self.find_spaces(plan, agent, seating)[0])
            for agent_id, agent in plan.agents.items()
            if agent_id in self.agents
        }
        (first, reading), *others = readings.items()
        for agent_id, other in others:
            if (reading and reading.key) != (other and other.key):
                raise CannotExport(
                    f"it reads the observations of {first!r} and {agent_id!r} by bounds of their "
                    "own; give them policies of their own"
                )
        return reading

    def more_inputs(self, plan: ServerPlan) -> list[Port]:
        """Returns the inputs beside observation, mask and state; it may fill in `agents`."""
        return []

    def number_members(self, plan: ServerPlan) -> None:
        """Notes in `agents` which row of its team each of them is."""
        for members in plan.groups.values():
            self.agents |= {a: members.index(a) for a in self.agents if a in members}

    @abstractmethod
    def initial_state(self) -> Any:
        """Returns the recurrent state of one agent, {} if there is none."""

    def feed(self, agent_id: str, values: Sequence[Any], last_action: Any) -> dict[str, np.ndarray]:
        """Returns the inputs for one agent at one step, ``[1, ...]`` each, without the state.

        Args:
            agent_id: the agent.
            values: its last `frame_stack` observations, as the simulation sends them; empty: it
                does not act now.
            last_action: the one before, -1 at its first step.
        """
        if self.frame_stack == 1 or not values:
            return self.feed_one(agent_id, values[-1] if values else None, last_action)
        feeds = [self.feed_one(agent_id, value, last_action) for value in values]
        return {
            name: np.stack([f[name] for f in feeds], axis=1) if name in self._seen else newest
            for name, newest in feeds[-1].items()
        }

    def feed_one(self, agent_id: str, value: Any, last_action: Any) -> dict[str, np.ndarray]:
        """Does what `feed` does, of one observation; None: the agent does not act now."""
        if self._observes_state:
            value = without_state(value)
        fed = {}
        if self.mask_space is not None:
            fed = feed_of(self.mask_space, ACTION_MASK, value[ACTION_MASK_KEY])
            value = without_mask(value)
        if (number := self.agents[agent_id]) is not None:
            fed[AGENT_ID] = np.array([number])
        return {**feed_of(self.observation_space, self.path, value), **fed}

    def flatten(self, given: dict[str, Tensor]) -> Tensor:
        """Returns the observation as the network reads it, float32 ``[B, ...]``."""
        if self.frame_stack == 1:
            return self._frame(given)
        frames = self._frame({name: given[name].flatten(0, 1) for name in self._seen})
        frames = frames.unflatten(0, (-1, self.frame_stack))
        # As `numpy.concatenate` on the last axis: the frames' own elements vary faster.
        return frames.movedim(1, -2).flatten(-2)

    def _frame(self, given: dict[str, Tensor]) -> Tensor:
        """Returns single observations as the network reads them."""
        if self.reading is None:
            return flatten(self.observation_space, self.path, given)
        # In the same steps and dtypes as `Reading`, so that nothing but rounding can differ.
        is_normal = self.reading.normalizer is not None
        dtype = torch.float64 if is_normal else torch.float32
        obs = flatten(self.observation_space, self.path, given, dtype)
        if self.reading.scale is not None:
            obs = (obs - self._offset) / self._width
        if is_normal:
            obs = (obs - self._mean) / self._deviation
            obs = torch.minimum(torch.maximum(obs, -self._limit), self._limit)
        return obs.to(torch.float32)

    @abstractmethod
    def act(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
        """Returns actions as a network chooses them, scores ``[B, k]``, and the next state."""

    @abstractmethod
    def server_scores(self, row: ServerRow, agent_id: str) -> np.ndarray | None:
        """Returns the scores behind an answer of a server's, ``[k]``; None: nobody knows them.

        Args:
            row: what it was asked, and answered.
            agent_id: one of the agents that this was for.
        """

    # --- the graph ----------------------------------------------------------------------

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns the greedy action, its scores and the next recurrent state."""
        given = {port.name: value for port, value in zip(self.inputs, values, strict=True)}
        action, scores, state = self.act(given)
        after = paths_of(state or {})
        return self._to_simulation(action), scores, *(after[path] for path in self.state_paths)

    def _to_simulation(self, action: Tensor) -> Tensor:
        """As a seat's ``act``; the constants are those of RLlib's `unsquash_action`."""
        space, kind, shape = self.action_space, self.form.kind, self.form.shape
        if isinstance(space, plain.Box):
            if self.form.has_bounds and self.form.is_scaled:
                action = self._low + (action + 1.0) * (self._high - self._low) / 2.0
            if self.form.has_bounds or not self.form.is_scaled:
                action = torch.minimum(torch.maximum(action, self._low), self._high)
            return action if shape is None else action.unflatten(-1, shape)
        if isinstance(kind, plain.Discrete):
            return action.to(torch.int64) + kind.start
        chosen = self._combinations[action] if self.form.is_one_choice else action.to(torch.int64)
        chosen = chosen + torch.from_numpy(self.form.first)
        if not isinstance(kind, plain.Box):
            return chosen
        return chosen.unflatten(-1, kind.shape).to(getattr(torch, kind.dtype))


def mask_space(agent: AgentPlan) -> Space | None:
    """Returns the space of the action mask that an agent observes; None: it observes none."""
    space = agent.observation_space
    return space.spaces.get(ACTION_MASK_KEY) if isinstance(space, DictSpace) else None


def _path_of(own: Space, space: Space) -> str:
    """Returns the key of the part of a Dict that is left alone without mask and state, else ""."""
    parts = space.spaces.items() if isinstance(space, DictSpace) else ()
    return next((key for key, part in parts if part is own), "")


def paths_of(state: Any, path: str = "") -> dict[str, Any]:
    """Returns the arrays of nested dicts by their path, such as ``.actor.h``."""
    if not isinstance(state, dict):
        return {path: state}
    return {p: v for key, sub in state.items() for p, v in paths_of(sub, f"{path}.{key}").items()}
