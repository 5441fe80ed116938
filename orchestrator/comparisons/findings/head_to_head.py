"""Computes the results of a head to head: how well each player does among the same others.

Returns of different roles are never compared, and all players of a role meet the same others. So
neither the role nor the opponents count as merit. Matches of different pairs of seeds share neither
runs nor episodes, so the bootstrap resamples pairs, and intervals are over training with other
seeds. The matches are played in `muxrl.orchestrator.comparisons.matches`.

A merit is a difference of returns. A rating counts won episodes, however large the difference: one
player of a role beats another in an episode if its return there is higher, among the same others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.frames import TableName, framed
from muxrl.orchestrator.measure.ratings import Ratings, rate, wins_of
from muxrl.orchestrator.measure.rliable import interquartile_mean_interval
from muxrl.orchestrator.measure.statistics import UNKNOWN, Estimate, Floats, Unit, mean_interval

if TYPE_CHECKING:
    from pandas import DataFrame, Series

RANDOM = "random"
"""The label of uniformly random actions."""


Match = Mapping[str, Any]
"""A row of the frame "matches": one policy in one role among others, with one pair of seeds.

The contestant and label of random actions are "random". `return` is the mean return of the role's
agents over the episodes (and seats); `returns` has it by episode, NaN where no agent took part.
"""


@dataclass(frozen=True)
class CrossPlay:
    """The cross-play of one role: a table of its players (rows) among others (columns).

    Attributes:
        role: the role whose return is measured.
        cells: by player and others: a row of the frame "payoffs"; absent if they never met. If one
            label is in several contestants, a pair of seeds has several matches; `num_partners` is
            how many matches were between policies that were trained together.
        merits: by player: its mean over the others less the mean of all players, that is, how much
            better it is in this role when all players meet the same others.
        ratings: by player: Elo points above random actions; intervals are over pairs of seeds, or
            over episodes if there is one pair.
        cycles: players of which each beats the next, and the last the first, which ratings cannot
            express.
        num_triples: number of all triples of players.
    """

    role: str
    cells: Mapping[tuple[str, str], Mapping[str, Any]]
    merits: Mapping[str, Estimate]
    ratings: Mapping[str, Estimate] = field(default_factory=dict)
    cycles: tuple[tuple[str, ...], ...] = ()
    num_triples: int = 0

    @property
    def players(self) -> tuple[str, ...]:
        """The players, in the order of rows."""
        return tuple(dict.fromkeys(player for player, _ in self.cells))

    @property
    def others(self) -> tuple[str, ...]:
        """The others, in the order of columns."""
        return tuple(dict.fromkeys(others for _, others in self.cells))


@dataclass(frozen=True)
class HeadToHead:
    """All matches of a head to head, and tables of them by role.

    Attributes:
        by_label: a table for each role, with players and others by their labels.
        by_contestant: a table for each role, with players and others by their contestants; () if
            these tables have no more rows and columns.
        matches: all matches that were played.
        pairs: for each pair of seeds: contestant to seed.
        num_episodes: number of episodes of each match and seat.
        first_seed: seed of the first pair's first episode; other pairs have other episodes.
        interchangeable: roles whose seats were rotated.
        should_explore: whether stochastic policies were sampled.
        snapshots: env steps of the checkpoints of each run that met; () if only one of each met.
        players: role to a row for each of its players: ``player``, and the ``algorithm`` and
            ``settings`` with which a POOL can hold it.
    """

    by_label: tuple[CrossPlay, ...]
    by_contestant: tuple[CrossPlay, ...]
    matches: tuple[Match, ...]
    pairs: tuple[Mapping[str, int], ...]
    num_episodes: int
    first_seed: int
    interchangeable: tuple[str, ...]
    should_explore: bool
    snapshots: tuple[int, ...] = ()
    players: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def stage_of(self, player: str) -> tuple[str, int | None]:
        """Splits a player's name into its label and the env steps of its snapshot, if any."""
        for env_steps in self.snapshots:
            if player.endswith(stage(env_steps)):
                return player.removesuffix(stage(env_steps)), env_steps
        return player, None

    def rating_curves(self, table: CrossPlay) -> dict[str, list[tuple[int, Estimate]]]:
        """Returns by label: the ratings of its snapshots in a table, in order of env steps."""
        curves: dict[str, list[tuple[int, Estimate]]] = {}
        for player, rating in table.ratings.items():
            label, env_steps = self.stage_of(player)
            if env_steps is not None:
                curves.setdefault(label, []).append((env_steps, rating))
        return {label: sorted(curve, key=lambda at: at[0]) for label, curve in curves.items()}

    @property
    def rating_unit(self) -> Unit:
        """What the intervals of ratings are over."""
        return Unit.PAIRS if len(self.pairs) > 1 else Unit.EPISODES

    @property
    def equal_seeds(self) -> tuple[int, ...]:
        """The seed of each pair, if runs of equal seeds met; else ()."""
        seeds = [set(pair.values()) for pair in self.pairs]
        return tuple(seed for (seed,) in seeds) if all(len(each) == 1 for each in seeds) else ()


def stage(env_steps: int) -> str:
    """Returns the suffix of a snapshot's name."""
    return f" @ {env_steps:,}"


def tables_of(
    matches: Sequence[Match], roles: Sequence[str]
) -> tuple[tuple[CrossPlay, ...], tuple[CrossPlay, ...]]:
    """Gathers matches into a table for each role.

    Returns:
        The tables by label, and those by contestant, () if these have no more rows and columns.
    """
    every = framed("matches", matches)
    of_contestants = every.assign(player=every.player_contestant, others=every.others_contestant)
    by_label, by_contestant = (
        tuple(_cross_play(those[those.role == role], role) for role in roles)
        for those in (every, of_contestants)
    )
    is_same = all(
        len(a.players) == len(b.players) and len(a.others) == len(b.others)
        for a, b in zip(by_label, by_contestant, strict=True)
    )
    return by_label, () if is_same else by_contestant


def _cross_play(matches: DataFrame, role: str) -> CrossPlay:
    """Gathers the matches of a role into a table."""
    players = list(matches.player.unique())
    groups = dict(tuple(matches.groupby(["player", "others"], sort=False)))
    by_pair = {
        names: met["return"].astype(float).groupby(met.pair).mean().dropna()
        for names, met in groups.items()
    }
    found = _rate(players, matches)
    merits, ratings = _merits(players, by_pair), dict(zip(players, found.ratings, strict=False))
    cells = {
        (player, of): {
            "role": role,
            "player": player,
            "others": of,
            "return": _over_pairs(list(by_pair[player, of]), met),
            "num_pairs": len(by_pair[player, of]),
            "num_matches": len(met),
            "num_partners": int(met.trained_together.sum()),
            "rating": ratings.get(player),
            "merit": merits.get(player),
        }
        for (player, of), met in groups.items()
    }
    cycles = tuple(tuple(players[i] for i in cycle) for cycle in found.cycles)
    return CrossPlay(role, cells, merits, ratings, cycles, found.num_triples)


def _merits(
    players: Sequence[str], by_pair: Mapping[tuple[str, str], Series]
) -> dict[str, Estimate]:
    """Returns each player's merit, from its returns among others by pair of seeds.

    Only others that all players have met count, equally weighted: easier others are no merit.
    """
    from pandas import concat

    others = dict.fromkeys(of for _, of in by_pair)
    common = [of for of in others if all((player, of) in by_pair for player in players)]
    met = {(player, of): by_pair[player, of] for player in players for of in common}
    if not met:
        return {}
    means = concat(met, axis=1, join="inner").sort_index().T.groupby(level=0, sort=False).mean()
    above = means - means.mean()
    return {player: mean_interval([of]) for player, of in above.iterrows() if len(of)}


def _rate(players: Sequence[str], matches: DataFrame) -> Ratings:
    """Rates players, which are compared among the same others.

    There are no ratings if the players do not include random actions, or nothing else.
    """
    wins: dict[int, Floats] = {}
    places = ["pair", "others", "others_contestant"]
    for (pair, *_), met in matches.groupby(places, sort=False):
        by_player = {player: list(own.returns) for player, own in met.groupby("player")}
        if len(by_player) == len(players):  # only others that all players have met, as for merits
            wins[pair] = wins.get(pair, 0) + wins_of([by_player[player] for player in players])
    if not wins or RANDOM not in players or len(players) == 1:
        return Ratings((), (), 0)
    of_pairs = np.array(list(wins.values()))  # [num_pairs, num_episodes, num_players, num_players]
    units = of_pairs.sum(axis=1) if len(wins) > 1 else of_pairs[0]
    return rate(units, players.index(RANDOM))


def _over_pairs(scores: Sequence[float], matches: DataFrame) -> Estimate:
    if not scores:
        return UNKNOWN
    if matches[["run", "other_run"]].isna().all(axis=None):
        # All policies are fixed: other pairs of seeds are not other runs.
        return Estimate(float(np.mean(scores)), math.nan, math.nan)
    return interquartile_mean_interval([scores])


def frames_of(played: HeadToHead | None) -> dict[TableName, DataFrame]:
    """Returns the frames of a head to head; they are empty if there is none."""
    tables = played.by_label if played else ()
    return {
        "matches": framed("matches", played.matches if played else ()),
        "payoffs": framed("payoffs", (row for table in tables for row in table.cells.values())),
        "ratings": framed("ratings", _rating_rows(played) if played else ()),
    }


def _rating_rows(played: HeadToHead) -> Iterator[dict[str, Any]]:
    for table in played.by_label:
        for player in table.players:
            label, env_steps = played.stage_of(player)
            yield {
                "role": table.role,
                "player": player,
                "label": label,
                "env_steps": env_steps,
                "rating": table.ratings.get(player),
                "merit": table.merits.get(player),
            }
