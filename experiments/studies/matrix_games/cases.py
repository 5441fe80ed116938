"""Climbing and penalty: games whose optimum no mixer can fit. See README.md.

At best, under uniform exploration, a team learns the greedy actions of the best least-squares fit
to the payoff table, ``[agent_0's action, agent_1's action]`` with equally frequent cells. The fits
of each family of values:

- independent learners fit the mean of their row or column,
- VDN fits a sum, row effect plus column effect; its greedy actions are the same,
- QMIX fits a table that rises along some order of the rows and some order of the columns (Rashid
  et al. 2018, equation 5). For given orders that is isotonic regression, a projection onto a cone,
  solved by its dual with non-negative least squares; all orders are tried.

QMIX's family here is the whole monotonic one. A network reaches only a part of it, and descent may
end in the best fit of orders that are not the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from muxrl.experiments.simulations.matrix_game import Game, oracle_return, random_return
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """A fitted table's greedy joint action, the action's real payoff, and the squared error."""

    actions: tuple[int, int]
    payoff: float
    squared_error: float


def additive_fit(payoffs: Table) -> Fit:
    """Returns VDN's fit, whose greedy actions independent learners choose, too."""
    rows, columns = payoffs.mean(1, keepdims=True), payoffs.mean(0, keepdims=True)
    fitted = rows + columns - payoffs.mean()
    actions = int(rows.argmax()), int(columns.argmax())
    return Fit(actions, float(payoffs[actions]), float(((fitted - payoffs) ** 2).sum()))


def monotonic_fits(payoffs: Table) -> list[Fit]:
    """Returns QMIX's fits, the best first: one for each joint action that can be the greatest."""
    num_rows, num_columns = payoffs.shape
    best: dict[tuple[int, int], Fit] = {}
    for rows in itertools.permutations(range(num_rows)):
        for columns in itertools.permutations(range(num_columns)):
            error = _isotonic_error(payoffs[np.ix_(rows, columns)])
            actions = rows[-1], columns[-1]
            if actions not in best or error < best[actions].squared_error:
                best[actions] = Fit(actions, float(payoffs[actions]), error)
    return sorted(best.values(), key=lambda fit: fit.squared_error)


def _isotonic_error(table: Table) -> float:
    """Returns the squared distance of a table to the nearest one that rises along both axes."""
    at = np.arange(table.size).reshape(table.shape)
    lower = np.concatenate([at[:-1].ravel(), at[:, :-1].ravel()])
    upper = np.concatenate([at[1:].ravel(), at[:, 1:].ravel()])
    rise = np.zeros((len(lower), table.size))
    rise[np.arange(len(lower)), lower] = -1.0
    rise[np.arange(len(lower)), upper] = 1.0
    # min |x - y|^2 with rise x >= 0: x = y + rise' m, where m >= 0 makes |y + rise' m| least.
    multipliers, _ = nnls(rise.T, -table.ravel())
    return float(((rise.T @ multipliers) ** 2).sum())


ALGORITHMS = ("QMIX", "VDN", "IQL")
"""Algorithms whose families contain neither table."""
WAITS = "servers.team.while_learning=wait"
"""Makes every run of a seed the same. If QPLEX served while it learns, the step from which it holds
the optimum would depend on how busy the machine is."""
QPLEX_SETTINGS: dict[str, dict[str, Any]] = {
    "climbing": {"lr": 1.0e-3, "updates_per_episode": 0.2},
    "penalty_100": {
        "lr": [[0, 3.0e-4], [10_000, 1.5e-5]],
        "importance_lr_factor": 30.0,
        "updates_per_episode": 0.2,
    },
}
"""By game: settings of QPLEX. In penalty, lambda has to learn faster than the members' values;
README.md says why."""
GAMES: dict[str, tuple[Game, float, float]] = {
    "climbing": ("climbing", 0.0, 5.0),
    "penalty_100": ("penalty", -100.0, 2.0),
    "penalty_25": ("penalty", -25.0, 2.0),
}
"""By name: the game, its k, and the payoff of the best least-squares fit of each family of
`ALGORITHMS`, which `additive_fit` and `monotonic_fits` compute. QPLEX's family has both tables."""


def _case(
    name: str, algorithm: str, best_fit: float, settings: Mapping[str, Any], *overrides: str
) -> Case:
    game, k, _ = GAMES[name]
    return Case(
        "matrix",
        (
            f"servers.team.algorithm={algorithm}",
            f"simulation.kwargs={{game: {game}, k: {k}}}",
            *(f"servers.team.settings.{key}={value}" for key, value in settings.items()),
            *overrides,
        ),
        env_steps=10_000,
        every=1_000,
        measure=evaluated(1, combine=sum),
        levels={
            "random": random_return(game, k),
            "optimum": oracle_return(game, k),
            "best fit": best_fit,
        },
    )


TABLE = CaseTable(
    {
        f"{name}: {algorithm}": _case(name, algorithm, best_fit, {})
        for name, (_, _, best_fit) in GAMES.items()
        for algorithm in ALGORITHMS
    }
    | {
        f"{name}: QPLEX": _case(name, "QPLEX", GAMES[name][2], settings, WAITS)
        for name, settings in QPLEX_SETTINGS.items()
    },
    seeds=(0, 1, 2),
    title="Joint return, one greedy episode every 1,000 env steps",
)

if __name__ == "__main__":
    main(TABLE, __doc__)
