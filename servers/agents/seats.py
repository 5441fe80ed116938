"""Seats: a server's agents as RLlib records them.

A simulation's agents and RLlib's need not be the same: a team is one RLlib agent. A seat is one
RLlib agent, and stands for one or more of the simulation's: a `SoloSeat` for an agent alone, others
come with their algorithm (see `Seating`). Seats are made once for a server, and say what there is;
what they read and write are arrays of many episodes, see `muxrl.servers.agents.parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from muxrl.protocol.spaces import Space


class Seat(Protocol):
    """One agent in RLlib's sense."""

    seat_id: str
    policy_id: str
    members: tuple[str, ...]
    observation_space: Space
    action_space: Space
    frame_stack: int
    """Observations of an agent that are read at once; the same for all seats of a server."""

    @property
    def part_class(self) -> Any:
        """What reads seats like this one together: a class of `Part`."""

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        """Returns the recorded form of actions that were chosen elsewhere, None if none were.

        For a team it has `NO_ACTION`, or NaN in a Box, for every member without a logged action.
        """

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        """Returns the log-probability of a logged action in its recorded form, None if unknown."""
