"""What policies are worth against best responses, exactly, by OpenSpiel.

A game's policy is a table of probabilities, float64 ``[information states, actions]``, for all
players: an information state is of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyspiel
from numpy.typing import NDArray
from open_spiel.python.algorithms import exploitability
from open_spiel.python.policy import TabularPolicy

from muxrl.client.adapters.open_spiel_game import OpenSpielGame

Table = NDArray[np.float64]


class ExactGame:
    """A sequential game of perfect recall, small enough to be walked through.

    Args:
        name: as in OpenSpiel.
    """

    def __init__(self, name: str) -> None:
        self._game = pyspiel.load_game(name)
        self._policy = TabularPolicy(self._game)
        self._observe = OpenSpielGame(name).observe
        self._before: dict[int, tuple[int, int] | None] = {}
        """By information state, in the order of play, its player's last one and action there."""
        self._walk(self._game.new_initial_state(), (None,) * self._game.num_players())

    def _walk(self, state: Any, last: tuple[tuple[int, int] | None, ...]) -> None:
        if state.is_terminal():
            return
        player, row = state.current_player(), None
        if not state.is_chance_node():
            row = self._policy.state_lookup[state.information_state_string(player)]
            self._before.setdefault(row, last[player])
        for action in state.legal_actions():
            after = last
            if row is not None:
                after = (*last[:player], (row, action), *last[player + 1 :])
            self._walk(state.child(action), after)

    def table(self, policies: Sequence[Any]) -> Table:
        """Returns the table of policies by seat, as `muxrl.load_policy` loads them."""
        seats = [state.current_player() for state in self._policy.states]
        return np.array(
            [
                policies[seat].probabilities(self._observe(state, seat))
                for state, seat in zip(self._policy.states, seats, strict=True)
            ]
        )

    def gains(self, table: Table) -> list[float]:
        """Returns what a best response of each player gains over its part of a table."""
        self._policy.action_probability_array[:] = table
        found = exploitability.nash_conv(self._game, self._policy, return_only_nash_conv=False)
        return [float(gain) for gain in found.player_improvements]

    def exploitability(self, table: Table) -> float:
        """Returns the mean of these gains: 0 in an equilibrium."""
        return float(np.mean(self.gains(table)))

    def reach(self, table: Table) -> NDArray[np.float64]:
        """Returns how likely each information state's player makes its own way there."""
        reach = np.ones(len(table))
        for row, before in self._before.items():
            if before is not None:
                reach[row] = reach[before[0]] * table[before]
        return reach


class Mean:
    """The policy that draws one of several for a whole game (Heinrich et al. 2015).

    In tables, each counts by how likely it gets there.
    """

    def __init__(self, game: ExactGame) -> None:
        self._game = game
        self._sum: Any = 0.0

    def add(self, table: Table) -> None:
        """Adds a policy."""
        self._sum = self._sum + self._game.reach(table)[:, None] * table

    @property
    def table(self) -> Table:
        """The mean of what was added."""
        return self._sum / self._sum.sum(axis=1, keepdims=True)
