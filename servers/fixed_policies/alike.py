"""Members of a pool whose networks differ in their numbers alone, read and asked together.

One pass for each of ten members costs a turn more than all else in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.servers.agents.seats import Seat, SoloSeat
from muxrl.servers.episodes.row_reader import RowReader
from muxrl.servers.episodes.rows import Chosen, RowStep
from muxrl.servers.episodes.trajectories import at, flat
from muxrl.servers.fixed_policies.policies import FixedActing


def form_of(seats: Mapping[str, Seat], acting: FixedActing) -> Any:
    """Returns what is equal for members that can be asked together; None: this one is alone.

    Args:
        seats: its own, of the server's agents.
        acting: `FrozenActing` tells of its networks.
    """
    networks: Mapping[str, Any] = getattr(acting, "networks", dict)()
    read = [seat.reads_as if type(seat) is SoloSeat else None for seat in seats.values()]
    if not networks or None in read:
        return None
    return tuple(read), tuple((policy_id, one.form) for policy_id, one in networks.items())


class Alike:
    """Acts for them.

    Args:
        row_reader: of the seats of any of them.
    """

    def __init__(self, row_reader: RowReader) -> None:
        self.row_reader = row_reader
        self._acting: list[Any] = []
        """Those whose networks are stacked."""
        self._stacks: dict[str, Any] = {}
        """By policy."""

    def forget(self) -> None:
        """Has the networks stacked anew: some have other weights, or will not act again."""
        self._acting = []

    def act(self, step: RowStep) -> list[Chosen]:
        """Returns the actions by bench: those that each member would choose for its rows alone."""
        rows_of: dict[Any, list[int]] = {}
        for row, episode in enumerate(step.episodes):
            rows_of.setdefault(episode.member.acting, []).append(row)
        self._stack([acting for acting in rows_of if acting not in self._acting])
        by_num: dict[int, list[Any]] = {}
        for acting, rows in rows_of.items():
            by_num.setdefault(len(rows), []).append(acting)
        chosen = []
        for bench, seen in zip(step.benches.benches, step.observations, strict=True):
            num_seats = len(bench.seats)
            actions = np.empty((len(step.episodes), num_seats), np.int64)
            # With as many rows as alone, since their number may change the last bits.
            for num, group in by_num.items():
                places = np.array([rows_of[acting] for acting in group])
                policy = self._stacks[bench.policy_id].of(tuple(map(self._acting.index, group)))
                logits = policy(flat(at(seen, places), axis=1))
                noise = np.empty(logits.shape)
                for i, acting in enumerate(group):
                    noise[i] = acting.noise(logits.shape[1:], is_training=step.is_training)
                best = (logits - np.log(noise)).argmax(axis=-1)
                actions[places] = best.reshape(len(group), num, num_seats)
            chosen.append(Chosen(actions, {}))
        return chosen

    def _stack(self, more: list[Any]) -> None:
        from muxrl.servers.rllib.numpy_mlp import Stack

        if more:
            self._acting += more
            networks = [acting.networks() for acting in self._acting]
            self._stacks = {
                policy_id: Stack([of_policies[policy_id] for of_policies in networks])
                for policy_id in networks[0]
            }
