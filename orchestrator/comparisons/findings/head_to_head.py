"""Head to head, as values: what was played, and what each player is worth among the same others.

No return of one role is compared with a return of another, and all players of a role meet the same
others. So neither the position nor the opponents are taken for merit. Matches of different pairs of
seeds share neither runs nor episodes, so the pair is what the bootstrap draws again, and intervals
speak of training with any seed. The matches are played in `muxrl.orchestrator.comparisons.matches`.

A merit is in returns. A rating counts episodes, whatever a return is made of: one player of a role
beats another in an episode if it returns more there, among the same others.
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
"""Label of uniformly random actions."""


Match = Mapping[str, Any]
"""A row of the frame "matches", of one policy in one role among others, with one pair of seeds.

Contestants and labels are "random" of random actions; `return` is the mean over the episodes (and
seats) of the role's agents, which `returns` has by episode, NaN where no agent took part.
"""


@dataclass(frozen=True)
class CrossPlay:
    """The cross-play of one role, as a table of those that play it by those that play the others.

    Attributes:
        role: whose return is measured.
        cells: by player and others, a row of the frame "payoffs"; a pair that never met has none.
            There are several matches of a pair of seeds if one label is in several contestants;
            `num_partners` of them are of policies that were trained together.
        merits: by player, its mean over the others less the mean of all players: what it is worth
            in this role when all meet the same others.
        ratings: by player, in Elo points above random actions, over pairs of seeds, of one
            pair over episodes.
        cycles: players of which each beats the next, and the last the first: no rating can tell
            that.
        num_triples: of players.
    """

    role: str
    cells: Mapping[tuple[str, str], Mapping[str, Any]]
    merits: Mapping[str, Estimate]
    ratings: Mapping[str, Estimate] = field(default_factory=dict)
    cycles: tuple[tuple[str, ...], ...] = ()
    num_triples: int = 0

    @property
    def players(self) -> tuple[str, ...]:
        """Rows."""
        return tuple(dict.fromkeys(player for player, _ in self.cells))

    @property
    def others(self) -> tuple[str, ...]:
        """Columns."""
        return tuple(dict.fromkeys(others for _, others in self.cells))


@dataclass(frozen=True)
class HeadToHead:
    """All matches, and each role's table of them.

    Attributes:
        by_label: for each role, players and others under the labels of their roles.
        by_contestant: the same under their contestants; () if that shows nothing new.
        matches: all matches that were played.
        pairs: the seeds that met: contestant to seed, for each pair.
        num_episodes: of each match and seat.
        first_seed: of the first pair's first episode; other pairs have other episodes.
        interchangeable: roles whose seats were rotated.
        should_explore: whether stochastic policies were sampled.
        snapshots: env steps of the checkpoints of each run that met, () if its last alone did.
        players: role to a row for each that played it: ``player``, and the ``algorithm`` and
            ``settings`` by which a POOL has it.
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
        """Returns a player's label without the env steps of its snapshot, and these."""
        for env_steps in self.snapshots:
            if player.endswith(stage(env_steps)):
                return player.removesuffix(stage(env_steps)), env_steps
        return player, None

    def rating_curves(self, table: CrossPlay) -> dict[str, list[tuple[int, Estimate]]]:
        """Returns the ratings of each label's snapshots in a table, by env steps."""
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
    """Returns what follows a label where a snapshot plays."""
    return f" @ {env_steps:,}"


def tables_of(
    matches: Sequence[Match], roles: Sequence[str]
) -> tuple[tuple[CrossPlay, ...], tuple[CrossPlay, ...]]:
    """Gathers matches into a table for each role.

    Returns:
        Those by label, and those by contestant, () if these have no more rows and columns.
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
    """Gathers the matches of a role by player and others."""
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
    """Returns what each player is worth, from its returns among others by pair of seeds.

    Only others that all players have met count, weighted alike: easier ones must not be a merit.
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
    """Returns the ratings of the players, each two compared among the same others; none where
    random actions are not among them, or alone."""
    wins: dict[int, Floats] = {}
    places = ["pair", "others", "others_contestant"]
    for (pair, *_), met in matches.groupby(places, sort=False):
        by_player = {player: list(own.returns) for player, own in met.groupby("player")}
        if len(by_player) == len(players):  # as for merits
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
        # Fixed policies alone: other seeds are not other runs.
        return Estimate(float(np.mean(scores)), math.nan, math.nan)
    return interquartile_mean_interval([scores])


def frames_of(played: HeadToHead | None) -> dict[TableName, DataFrame]:
    """Returns the frames of a head to head, empty without one."""
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
