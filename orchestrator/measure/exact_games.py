"""Computes with OpenSpiel exactly how policies fare against best responses.

A game's policy is a table of probabilities, float64 ``[information states, actions]``. It is for
all players at once, since each information state belongs to one player.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.open_spiel_game import OpenSpielGame
from muxrl.client.adapters.simulation import SimulationError

Table = NDArray[np.float64]
_MOST_STATES = 100_000
"""Most states of a game: Leduc poker has 9,457; beyond this a best response takes minutes."""


class ExactGame:
    """A sequential game of perfect recall that is small enough to visit all states.

    Args:
        name: name of the game in OpenSpiel.
        parameters: of the game.

    Raises:
        SimulationError: the game is not sequential, has no information states, or is too large.
    """

    def __init__(self, name: str, **parameters: Any) -> None:
        import pyspiel
        from open_spiel.python.policy import TabularPolicy

        self._observe = OpenSpielGame(name, **parameters).observe
        self._game = pyspiel.load_game(name, *([parameters] if parameters else []))
        kind = self._game.get_type()
        if kind.dynamics != kind.Dynamics.SEQUENTIAL or not kind.provides_information_state_string:
            raise SimulationError(f"game {name!r} is not sequential with information states")
        before: dict[str, tuple[str, int] | None] = {}
        self._num_states = 0
        self._walk(self._game.new_initial_state(), (None,) * self._game.num_players(), before)
        self._policy = TabularPolicy(self._game)
        self.uniform: Table = self._policy.action_probability_array.copy()
        """The table of the policy that is uniform over legal actions."""
        self.seats = np.array([state.current_player() for state in self._policy.states])
        """By information state: the seat of its player."""
        row_of = self._policy.state_lookup
        self._before = {
            row_of[state]: last and (row_of[last[0]], last[1]) for state, last in before.items()
        }
        """By information state, in order of play: its player's previous one and action."""

    def _walk(
        self,
        state: Any,
        last: tuple[tuple[str, int] | None, ...],
        before: dict[str, tuple[str, int] | None],
    ) -> None:
        self._num_states += 1
        if self._num_states > _MOST_STATES:
            raise SimulationError(f"the game has more than {_MOST_STATES:,} states")
        if state.is_terminal():
            return
        player, seen = state.current_player(), ""
        if not state.is_chance_node():
            seen = state.information_state_string(player)
            before.setdefault(seen, last[player])
        for action in state.legal_actions():
            after = last
            if player >= 0:
                after = (*last[:player], (seen, action), *last[player + 1 :])
            self._walk(state.child(action), after, before)

    def table(self, policies: Sequence[Any], *, is_greedy: bool = False) -> Table:
        """Returns the table of one policy for each seat.

        Args:
            policies: for each seat a `LoadedPolicy` or `MeanPolicy`, as `muxrl.load_policy` loads
                it, or None: uniform.
            is_greedy: whether each policy takes its likeliest action.

        Raises:
            AlgorithmProblem: a policy has no probabilities of actions.
        """
        if any(hasattr(policy, "members") for policy in policies):
            seats = [getattr(policy, "members", [policy]) for policy in policies]
            return self.mean_table([[(one, 1.0, is_greedy) for one in those] for those in seats])
        rows = self.uniform.copy()
        for row, state in enumerate(self._policy.states):
            seat = state.current_player()
            if (policy := policies[seat]) is not None:
                rows[row] = policy.probabilities(self._observe(state, seat))
                if is_greedy:
                    rows[row] = np.arange(len(rows[row])) == rows[row].argmax()
        return rows

    def mean_table(self, seats: Sequence[Sequence[tuple[Any, float, bool]]]) -> Table:
        """Returns the table of a draw among several policies for each seat; see `Mean`.

        Args:
            seats: by seat: of each policy, the policy as for `table`, its weight, and whether it is
                greedy.

        Raises:
            AlgorithmProblem: as `table`.
        """
        mean = Mean(self)
        for seat, players in enumerate(seats):
            for policy, weight, is_greedy in players:
                alone = [policy if seat == i else None for i in range(len(seats))]
                mean.add(self.table(alone, is_greedy=is_greedy), weight * (self.seats == seat))
        return mean.table

    def best_response(self, table: Table, seat: int) -> tuple[float, float]:
        """Returns the value of a best response in a seat to the rest of a table.

        The second number is the value of the seat's own part of the table.
        """
        from open_spiel.python.algorithms import exploitability

        self._policy.action_probability_array[:] = table
        found = exploitability.best_response(self._game, self._policy, seat)
        return float(found["best_response_value"]), float(found["on_policy_value"])

    def gains(self, table: Table) -> list[float]:
        """Returns for each player what a best response gains over its part of a table."""
        both = [self.best_response(table, seat) for seat in range(self._game.num_players())]
        return [best - own for best, own in both]

    def exploitability(self, table: Table) -> float:
        """Returns the mean of the players' `gains`: 0 in an equilibrium."""
        return float(np.mean(self.gains(table)))

    def reach(self, table: Table) -> NDArray[np.float64]:
        """Returns how likely the player's own actions lead to each information state."""
        reach = np.ones(len(table))
        for row, before in self._before.items():
            if before is not None:
                reach[row] = reach[before[0]] * table[before]
        return reach


class Mean:
    """The policy that draws one of several policies for a whole game (Heinrich et al. 2015).

    In each information state, a policy counts by its probability to get there, as in OpenSpiel's
    `PolicyAggregator`.
    """

    def __init__(self, game: ExactGame) -> None:
        self._game = game
        self._sum: Any = 0.0

    def add(self, table: Table, weight: Any = 1.0) -> None:
        """Adds a policy; `weight` is one number, or one for each information state."""
        self._sum = self._sum + (weight * self._game.reach(table))[:, None] * table

    @property
    def table(self) -> Table:
        """The mean of the added policies; uniform in states that none of them reaches."""
        num = self._sum.sum(axis=1, keepdims=True)
        return np.divide(self._sum, num, out=self._game.uniform.copy(), where=num > 0)
