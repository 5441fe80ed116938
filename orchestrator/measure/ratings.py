"""Rates players from paired comparisons: Bradley and Terry's model on Elo's scale, and its limits.

P(i beats k) = 1 / (1 + 10 ** ((r_k - r_i) / 400)) for ratings r (Bradley & Terry 1952, Elo 1978),
fitted by the MM algorithm of Hunter 2004, "MM algorithms for generalized Bradley-Terry models".
A draw is half a win for both. One drawn game is added to each pair, so that a player who always
wins has a finite rating, which is then a lower bound. One number for each player cannot express
that A beats B, B beats C, and C beats A, so such triples are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from muxrl.orchestrator.measure.statistics import Estimate, Floats, has_interval, widened

_NUM_RESAMPLES = 1_000  # a model is fitted to each
_SCALE = 400 / math.log(10)
_MAX_ROUNDS, _TOLERANCE = 2_000, 1e-7


@dataclass(frozen=True)
class Ratings:
    """The ratings of some players.

    Attributes:
        ratings: by player: Elo points above the anchor; without intervals if `has_interval`
            says so.
        cycles: triples (i, k, l) in which each player beats the next: the interval of its share of
            wins is above one half.
        num_triples: number of all triples of players.
    """

    ratings: tuple[Estimate, ...]
    cycles: tuple[tuple[int, int, int], ...]
    num_triples: int


def rate(wins: Floats, anchor: int) -> Ratings:
    """Rates players, with bootstrap intervals from `statistics.widened`.

    Args:
        wins: ``[num_units, num_players, num_players]``, how often the row beat the column (a draw
            is one half for both). The bootstrap resamples units.
        anchor: the player whose rating is 0.
    """
    num_units, num_players, _ = wins.shape
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(num_units, np.full(num_units, 1 / num_units), size=_NUM_RESAMPLES)
    whole, again = wins.sum(axis=0), np.tensordot(drawn, wins, 1)
    found, share = _fit(whole, anchor), _share(whole)
    low, high = _ends(_fit(again, anchor) - found, num_units, is_known=has_interval([wins]))
    # Cycles are also reported if a few units are all equal, where ratings have no intervals.
    is_above = share + _ends(_share(again) - share, num_units, is_known=num_units > 1)[0] > 0.5
    triples = list(combinations(range(num_players), 3))
    return Ratings(
        tuple(
            Estimate(*map(float, one)) for one in zip(found, found + low, found + high, strict=True)
        ),
        tuple(
            way
            for i, k, m in triples
            for way in ((i, k, m), (i, m, k))
            if all(is_above[way[place - 1], way[place]] for place in range(3))
        ),
        len(triples),
    )


def _ends(deviations: Floats, num_units: int, *, is_known: bool) -> Floats:
    if not is_known:
        return np.full((2, *deviations.shape[1:]), math.nan)
    return widened(deviations, num_units, 1)


def wins_of(returns: Sequence[Sequence[Floats]]) -> Floats:
    """Returns how often each player's return was above another's in the same episode.

    Args:
        returns: by player and run: the return in each episode, ``[num_episodes]``; NaN where there
            is none. Several runs of a player count as their mean.

    Returns:
        ``[num_episodes, num_players, num_players]``, see `rate`.
    """
    every = np.array([run for runs in returns for run in runs])
    part = np.zeros((len(returns), len(every)))
    place = 0
    for player, runs in enumerate(returns):
        part[player, place : place + len(runs)] = 1 / len(runs)
        place += len(runs)
    won = np.nan_to_num((np.sign(every[:, None] - every) + 1) / 2)
    return np.einsum("im,mne,kn->eik", part, won, part, optimize=True)


def _share(wins: Floats) -> Floats:
    """Returns the rows' share of wins over each column, with one added draw: ``[..., n, n]``."""
    return (wins + 0.5) / (wins + np.swapaxes(wins, -1, -2) + 1)


def _fit(wins: Floats, anchor: int) -> Floats:
    """Fits ratings ``[..., num_players]`` to wins ``[..., num_players, num_players]``."""
    others = 1 - np.eye(wins.shape[-1])
    won = (wins + 0.5) * others
    games, total = won + np.swapaxes(won, -1, -2), won.sum(-1)
    strength = np.ones(total.shape)
    for _ in range(_MAX_ROUNDS):
        before = strength
        strength = total / (games / (strength[..., None] + strength[..., None, :])).sum(-1)
        strength /= np.exp(np.log(strength).mean(-1, keepdims=True))
        if np.abs(strength / before - 1).max() < _TOLERANCE:
            break
    ratings = _SCALE * np.log(strength)
    return ratings - ratings[..., [anchor]]
