"""Members of a pool whose networks differ in nothing but their numbers; they share one pass.

With ten members, a pass for each would take longer than everything else in a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.rows import pick
from muxrl.servers.acting import Acted, Acting, Asked
from muxrl.servers.agents.dense_policy import Stack
from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.blocks import Seats
from muxrl.servers.trainers.acting import Actors


def form_of(seats: Mapping[str, Seat], acting: Acting) -> Any:
    """Returns a value that is equal for members that can share a pass; None: this one cannot.

    Args:
        seats: the member's seats, for the server's agents.
        acting: the member's; `Actors` have networks that can be compared.
    """
    networks = acting.dense_policies() if isinstance(acting, Actors) else None
    read = [seat.reads_as for seat in seats.values()]
    if not networks or None in read:
        return None
    return tuple(read), tuple((policy_id, one.form) for policy_id, one in networks.items())


class Alike:
    """Acts for members that are alike.

    Args:
        seats: the seats of any of these members.
    """

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self._acting: list[Any] = []
        """The members whose networks are stacked."""
        self._stacks: dict[str, Stack] = {}
        """By policy: the members' networks."""

    def forget(self) -> None:
        """Drops the stacked networks: some members have new weights, or will not act any more."""
        self._acting = []

    def answer(self, asked: Asked, acting: Sequence[Any]) -> Acted:
        """Returns the actions that each member would choose for its rows alone.

        Args:
            asked: the rows of one policy.
            acting: for each row, the member that acts.
        """
        rows_of: dict[Any, list[int]] = {}
        for row, one in enumerate(acting):
            rows_of.setdefault(one, []).append(row)
        self._stack([one for one in rows_of if one not in self._acting])
        by_num: dict[int, list[Any]] = {}
        for one, rows in rows_of.items():
            by_num.setdefault(len(rows), []).append(one)
        seen, actions = asked.observations(), np.empty(len(asked), np.int64)
        # Members with equally many rows together: the number of rows may change the last bits.
        for group in by_num.values():
            places = np.array([rows_of[one] for one in group])
            policy = self._stacks[asked.policy_id].of(tuple(map(self._acting.index, group)))
            logits = policy(pick(seen, places))
            noise = np.empty(logits.shape)
            for i, one in enumerate(group):
                noise[i] = one.noise(logits.shape[1:], is_training=asked.is_training)
            actions[places] = (logits - np.log(noise)).argmax(axis=-1)
        asked.put_logged(actions)
        return Acted(actions, {})

    def _stack(self, more: list[Any]) -> None:
        if more:
            self._acting += more
            networks = [acting.dense_policies() for acting in self._acting]
            self._stacks = {
                policy_id: Stack([of_policies[policy_id] for of_policies in networks])
                for policy_id in networks[0]
            }
