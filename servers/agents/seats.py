"""Seats: the units of a server that act and learn, each with a record of its own.

A seat is an agent, or a team, which acts for several of the simulation's agents. A server's seats
are made once, by its `muxrl.servers.agents.seating.Seating`, and describe what there is; arrays of
many episodes are read and written by `muxrl.servers.agents.parts`.
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
"""A seat's reward: its agent's reward, or the sum or mean of its team's rewards."""


@dataclass(frozen=True, eq=False)
class Member:
    """An agent that a seat acts for, or whose observations are part of the seat's state.

    Attributes:
        agent_id: the agent's id.
        own_space: the space of its observation without state and mask, as networks read it.
        form: how its actions become actions of a network.
        read_own: reads an observation from which state and mask were taken.
        observes_state: whether its observation has a global state that is taken out.
        is_masked: whether its observation has an action mask that is taken out.
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
        """Reads an observation as it is sent, without its state and mask."""
        if not self.observes_state and not self.is_masked:
            return self.read_own

        def read(value: Any) -> Any:
            rest = self.without_state(value)
            return self.read_own(without(rest, ACTION_MASK) if self.is_masked else rest)

        return read

    def without_state(self, value: Any) -> Any:
        """Returns an observation without its state; a mask stays in it."""
        return without(value, STATE) if self.observes_state else value

    def mask(self, value: Any) -> Any:
        """Returns the action mask in an observation, as it is sent."""
        return self.without_state(value)[ACTION_MASK]


@dataclass(frozen=True, eq=False)
class Seat:
    """A unit that acts and learns with one policy.

    Attributes:
        seat_id: the id of the agent or the group.
        policy_id: the policy that acts.
        agents: the agents that it acts for, in the order of their rows.
        members: ids of the agents with the last of which the seat ends.
        inputs: what its policy reads: classes of `muxrl.servers.agents.parts.Input`.
        actions: how its policy's actions become those of its agents.
        own_space: the space of its agents' observations, as networks read them.
        is_team: whether observations and actions have a row for each agent.
        view: the agents whose state it sees, in the order of their observations.
        state_size: length of that state; None: it sees none.
        read_state: reads the state that the simulation sends; None: the simulation sends none.
        reward: which rewards make the seat's reward.
        allows_late: whether a team may begin without some of its members; then a state made of
            observations side by side also says who has departed.
        frame_stack: number of an agent's observations that are read at once; equal for all seats
            of a server.
        reads_as: equal for seats that read and write alike; None: no other seat does.
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
        """Whether any of its agents observes an action mask."""
        return any(member.is_masked for member in self.agents)

    @cached_property
    def observation_space(self) -> Space:
        """The space of what its policy reads: a Dict, or `own_space` if there is nothing else."""
        spaces = {one.key: one.space(self) for one in self.inputs}
        there = {key: space for key, space in spaces.items() if space is not None}
        is_alone = there.keys() == {OBS} and STATE not in spaces
        return self.own_space if is_alone else DictSpace(there)

    @property
    def action_space(self) -> Space:
        """The space in which its policy acts."""
        return self.actions.space
