"""Seats: a server's agents as RLlib records them.

A simulation's agents and RLlib's need not be the same: a team is one RLlib agent. A seat is one
RLlib agent, and stands for one or more of the simulation's: `SoloSeat` for an agent alone, others
come with their algorithm (see `Seating`). Seats are made once for a server; what changes in an
episode is in `SeatRecord`.

What is made anew in every step is a `msgspec.Struct`: making one costs a quarter of a named tuple.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import numpy as np

from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.agents.action_forms import ActionForm, action_form
from muxrl.servers.agents.frames import Frames
from muxrl.servers.agents.masks import ACTION_MASK, OBS, masked_space, none_available
from muxrl.servers.agents.observing import Observing, Reader
from muxrl.servers.agents.spaces import (
    ACTION_MASK_KEY,
    split_mask,
    without_mask,
)
from muxrl.servers.agents.teams import NO_ACTION
from muxrl.servers.config import AgentPlan


class StepView(msgspec.Struct, frozen=True, gc=False):
    """What the simulation shows in one step, to all seats."""

    observations: Mapping[str, Any]
    state: Any = None
    """The simulation's global state, if it has been asked for."""
    departed: Collection[str] = ()
    """Agents that are done by now."""
    back: Collection[str] = ()
    """Agents that begin a new life: what they did in the one before is forgotten."""
    is_final: bool = False
    """Whether a seat sees this at its end and does not act on it: no mask is needed there."""
    frames: Frames | None = None
    """What the agents saw before in this episode; None: seats read the newest only."""

    def read(self, agent_id: str, reader: Reader, value: Any) -> np.ndarray:
        """Returns what an agent's network reads of its observation, and of those before it.

        Args:
            agent_id: the agent.
            reader: of all that the network reads of one; the same by whichever seat.
            value: what it reads.
        """
        frame = reader(value)
        if self.frames is None:
            return frame
        return self.frames.stack(agent_id, frame, is_final=self.is_final)


class SeatRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks a policy for one seat's action in one step."""

    seat: Seat
    observation: Any
    module_state: Any = None
    """Recurrent state after the seat's last action; None: the module's initial one."""
    logged_action: Any = None
    """The action, where it was chosen elsewhere; see `Seat.read_logged`."""
    logged_log_prob: float | None = None
    """The log-probability with which that was chosen, if it is known."""


def put_logged(actions: Any, requests: Sequence[SeatRequest]) -> None:
    """Replaces the policy's actions by those that were chosen elsewhere."""
    for i, request in enumerate(requests):
        logged = request.logged_action
        if logged is None:
            continue
        # A team's other members keep their own; elsewhere none of these is negative, or NaN.
        if not isinstance(space := request.seat.action_space, Discrete):
            is_own = np.isnan(logged) if isinstance(space, Box) else logged == NO_ACTION
            logged = np.where(is_own, actions[i], logged)
        actions[i] = logged


class SeatAction(msgspec.Struct, frozen=True, gc=False):
    """A policy's answer: the action and all that goes with it."""

    action: Any
    """As the RLModule gave it."""
    extra_outputs: Mapping[str, Any] = MappingProxyType({})
    """What RLlib wants recorded with it (log-probability and the like)."""
    module_state: Any = None
    """Recurrent state after it; None where the module has none."""


@dataclass(slots=True)
class SeatRecord:
    """What is remembered of a seat in one episode."""

    module_state: Any = None
    """Recurrent state after the last action; None: the module's initial one."""
    last_actions: Mapping[str, Any] = field(default_factory=dict)
    """Agents' last actions, as sent to the simulation; of other seats' agents, too."""
    members_done: set[str] = field(default_factory=set)
    has_begun: bool = False
    is_done: bool = False


class Seat(Protocol):
    """One agent in RLlib's sense."""

    seat_id: str
    policy_id: str
    members: tuple[str, ...]
    observation_space: Space
    action_space: Space
    frame_stack: int
    """Observations of an agent that are read at once; the same for all seats of a server."""

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        """Returns the recorded observation, or None if no member observes at this step."""

    def reward(self, rewards: Mapping[str, float]) -> float:
        """Returns the recorded reward."""

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        """Returns what goes to the simulation: an action for each acting member."""

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        """Returns the recorded form of actions that were chosen elsewhere, None if none were.

        For a team it has `NO_ACTION`, or NaN in a Box, for every member without a logged action.
        """

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        """Returns the log-probability of a logged action in its recorded form, None if unknown."""


class SoloSeat:
    """An agent that is recorded under its own name.

    Args:
        agent_id: the agent.
        plan: its own.
        observing: how its observations are read; None: as they are.
        form: how its actions become those of its network; None: the usual one.
        follows_mask: whether an action mask is kept apart from the rest of the observation (see
            `masked_space`), or is flattened with it.
    """

    def __init__(
        self,
        agent_id: str,
        plan: AgentPlan,
        observing: Observing | None = None,
        *,
        form: ActionForm | None = None,
        follows_mask: bool = False,
    ) -> None:
        observing = observing or Observing({agent_id: plan})
        self.seat_id = agent_id
        self.frame_stack = observing.frame_stack
        self.policy_id = plan.policy_id
        self.members: tuple[str, ...] = (agent_id,)
        space, has_mask = split_mask(plan.observation_space)
        self.is_masked = follows_mask and has_mask
        if not self.is_masked:
            space = plan.observation_space
        self.observation_space: Space = observing.space(space)
        self.form = form or action_form(plan.action_space)
        self.action_space = self.form.space
        if self.is_masked:
            self.observation_space = masked_space(self.observation_space, self.action_space)
        self.reads_as = observing.reads_as and (
            observing.reads_as,
            self.is_masked,
            self.form.is_one_choice,
            self.form.is_scaled,
        )
        """Equal for seats of an agent that read and write alike; None: no other does."""
        self.read = observing.reader(agent_id, space)

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        value = step_view.observations.get(self.seat_id)
        if value is None or not self.is_masked:
            return None if value is None else step_view.read(self.seat_id, self.read, value)
        mask = self.form.read_mask(value[ACTION_MASK_KEY])
        if step_view.is_final and not mask.any():
            mask = np.ones_like(mask)  # of a bootstrapped value it would leave nothing
        if not mask.any():
            raise none_available(self.seat_id)
        seen = step_view.read(self.seat_id, self.read, without_mask(value))
        return {OBS: seen, ACTION_MASK: mask}

    def reward(self, rewards: Mapping[str, float]) -> float:
        return rewards.get(self.seat_id, 0.0)

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        return {self.seat_id: self.form.write(action)}

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        value = logged.get(self.seat_id)
        return None if value is None else self.form.read(value)

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        log_prob = log_probs.get(self.seat_id)
        return None if log_prob is None else log_prob + self.form.log_scale
