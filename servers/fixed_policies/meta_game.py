"""A game of two roles whose actions are policies, and how often each policy is played in it.

Nash weights are the equilibrium with the largest entropy, which is unique, and in which equal
policies weigh the same (Balduzzi et al. 2018, "Re-evaluating Evaluation", arXiv 1806.02643).
OpenSpiel's version needs cvxpy; this is the same program, solved by SciPy. Alpha-rank (Omidshafiei
et al. 2019, doi 10.1038/s41598-019-45619-9) is OpenSpiel's; it is not limited to zero-sum games.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Weights = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights of the policies of both roles; each role's sum to 1."""
KINDS = NASH, ALPHA_RANK = ("nash", "alpha_rank")
_MOST_PAIRS = 1_000
"""Most pairs of policies from two populations: about 4 s; alpha-rank's time grows with the cube."""
_NOISE = 0.001
"""Noise of alpha-rank's chain: steps for the worse, without which the answer may not be unique."""
_TOLERANCE = 1e-6
"""Payoffs below this share of the largest are rounding errors; weights below it count as 0."""


class MetaGame:
    """A game of two roles, each of which plays one of its policies.

    Args:
        payoffs: of both roles, float64 ``[2, policies of the first, of the second]``.
        is_symmetric: whether each policy can play either role, and both roles have the same
            policies; payoffs are then means over the two roles.
    """

    def __init__(self, payoffs: NDArray[np.float64], *, is_symmetric: bool = False) -> None:
        if is_symmetric:
            payoffs = (payoffs + payoffs[::-1].transpose(0, 2, 1)) / 2
        self._payoffs = payoffs / (np.abs(payoffs).max() or 1.0)
        self._is_symmetric = is_symmetric

    @property
    def is_zero_sum(self) -> bool:
        """Whether the returns of the roles have a constant sum."""
        return bool(np.ptp(self._payoffs.sum(axis=0)) <= _TOLERANCE)

    def weights(self, kind: str) -> Weights | str:
        """Returns the weights of both roles' policies, or why there are none.

        Args:
            kind: `NASH` or `ALPHA_RANK`.
        """
        if kind == NASH:
            if not self.is_zero_sum:
                return "the roles' returns have no constant sum, which nash needs; try alpha_rank"
            first, second = self._payoffs
            return _equilibrium(first), _equilibrium(second.T)
        if problem := alpha_rank_problem():
            return problem
        if self._payoffs[0].size > _MOST_PAIRS and not self._is_symmetric:
            return (
                f"more than {_MOST_PAIRS:,} pairs would take too long; use fewer (in a league: "
                "opponents.last)"
            )
        return self._alpha_rank()

    def _alpha_rank(self) -> Weights:
        from open_spiel.python.egt import alpharank

        tables = list(self._payoffs[: 1 if self._is_symmetric else 2])
        found = alpharank.compute(tables, use_inf_alpha=True, inf_alpha_eps=_NOISE)[2]
        if self._is_symmetric:
            return found, found
        both = found.reshape(self._payoffs[0].shape)
        return both.sum(axis=1), both.sum(axis=0)


def alpha_rank_problem() -> str:
    """Returns why alpha-rank cannot be computed here; "": it can."""
    if find_spec("open_spiel") is not None:
        return ""
    return "OpenSpiel is not installed here; it comes with: pip install 'muxrl[open_spiel]'"


def _equilibrium(payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the row player's strategy in a zero-sum game, ``[rows]`` from ``[rows, columns]``."""
    from scipy.optimize import linprog, minimize

    num, others = payoffs.shape
    best = linprog(  # the largest value that can be had against each column
        np.append(np.zeros(num), -1.0),
        np.column_stack([-payoffs.T, np.ones(others)]),
        np.zeros(others),
        [np.append(np.ones(num), 0.0)],
        [1.0],
        [*[(0.0, 1.0)] * num, (None, None)],
    ).x
    eps = 1e-12  # keeps logarithms finite
    even = minimize(
        lambda p: p @ np.log(p + eps),
        best[:-1],
        jac=lambda p: np.log(p + eps) + p / (p + eps),
        bounds=[(0.0, 1.0)] * num,
        constraints=(
            {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(num)},
            {"type": "ineq", "fun": lambda p: payoffs.T @ p - best[-1] + 1e-9,
             "jac": lambda p: payoffs.T},
        ),
        options={"maxiter": 1000, "ftol": 1e-10},
    )  # fmt: skip
    found = even.x if even.success else best[:-1]  # an equilibrium, too, if not the most even one
    found = np.where(found > _TOLERANCE, found, 0.0)
    return found / found.sum()
