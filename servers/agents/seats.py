"""Seats: a server's agents as they are recorded.

A seat is an agent, or a team, which acts for several of the simulation's agents. Seats are made
once for a server, by its `muxrl.servers.agents.seating.Seating`, and say what there is; what they
read and write are arrays of many episodes, see `muxrl.servers.agents.parts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from muxrl.protocol.spaces import DictSpace, Space
from muxrl.servers.agents.action_forms import ActionForm
from muxrl.servers.agents.keys import ACTION_MASK, OBS, STATE
from muxrl.servers.agents.observing import Reader
from muxrl.servers.agents.seat_actions import SeatActions
from muxrl.servers.agents.spaces import without

RewardRule = Literal["own", "sum", "mean"]
"""A seat's reward: its agent's, or the sum or mean of its team's."""


@dataclass(frozen=True, eq=False)
class Member:
    """One of the agents that a seat acts for, or whose observations are part of its state.

    Attributes:
        agent_id: its id.
        own_space: of what it observes itself, without state and mask, as networks read it.
        form: how its actions become those of a network.
        read_own: reads what is left of an observation without state and mask.
        observes_state: whether a global state in its observation is apart.
        is_masked: whether an action mask in its observation is apart.
        read_state: reads that state; None: it is not read.
    """

    agent_id: str
    own_space: Space
    form: ActionForm
    read_own: Reader
    observes_state: bool = False
    is_masked: bool = False
    read_state: Reader | None = None

    @property
    def read(self) -> Reader:
        """Reads what it observes itself, of observations as they are sent."""
        if not self.observes_state and not self.is_masked:
            return self.read_own

        def read(value: Any) -> Any:
            rest = self.without_state(value)
            return self.read_own(without(rest, ACTION_MASK) if self.is_masked else rest)

        return read

    def without_state(self, value: Any) -> Any:
        """Returns an observation without the state, in which its mask is."""
        return without(value, STATE) if self.observes_state else value

    def mask(self, value: Any) -> Any:
        """Returns the action mask in an observation, as it is sent."""
        return self.without_state(value)[ACTION_MASK]


@dataclass(frozen=True, eq=False)
class Seat:
    """One that acts and learns by a policy.

    Attributes:
        seat_id: the agent's, or its group's.
        policy_id: who acts.
        agents: those that it acts for, in the order of their rows.
        members: ids of those of which it ends with the last one.
        inputs: what its policy reads: classes of `muxrl.servers.agents.parts.Input`.
        actions: what its policy does.
        own_space: of what its agents observe themselves, as networks read it.
        is_team: whether its observations and actions have a row for each agent.
        view: the agents whose state it sees, in the order of their observations.
        state_size: length of that state; None: it sees none.
        read_state: reads the state that the simulation sends; None: it sends none.
        reward: whose rewards are its own.
        allows_late: whether a team may begin without some of its members; then observations side by
            side are followed by who has departed.
        frame_stack: observations of an agent that are read at once; the same for all seats of a
            server.
        reads_as: equal for seats that read and write alike; None: no other does.
    """

    seat_id: str
    policy_id: str
    agents: tuple[Member, ...]
    members: tuple[str, ...]
    inputs: tuple[Any, ...]
    actions: SeatActions
    own_space: Space
    is_team: bool = False
    view: tuple[Member, ...] = ()
    state_size: int | None = None
    read_state: Reader | None = None
    reward: RewardRule = "own"
    allows_late: bool = True
    frame_stack: int = 1
    reads_as: Any = None

    @property
    def has_masks(self) -> bool:
        """Whether one of its agents observes an action mask."""
        return any(member.is_masked for member in self.agents)

    @cached_property
    def observation_space(self) -> Space:
        """What its policy reads: a Dict, or `own_space` where that is all."""
        spaces = {one.key: one.space(self) for one in self.inputs}
        there = {key: space for key, space in spaces.items() if space is not None}
        is_alone = there.keys() == {OBS} and STATE not in spaces
        return self.own_space if is_alone else DictSpace(there)

    @property
    def action_space(self) -> Space:
        """What its policy acts in."""
        return self.actions.space
