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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.frames import TableName, framed
from muxrl.orchestrator.measure.ratings import Ratings, rate, wins_of
from muxrl.orchestrator.measure.rliable import interquartile_mean_interval
from muxrl.orchestrator.measure.statistics import UNKNOWN, Estimate, Floats, Unit, mean_interval

if TYPE_CHECKING:
    from pandas import DataFrame

RANDOM = "random"
"""Label of uniformly random actions."""


@dataclass(frozen=True)
class Match:
    """Episodes of one policy in one role among others, with one pair of seeds.

    Attributes:
        role: of the player whose return is measured.
        player: its label.
        player_contestant: the contestant it belongs to, or "random".
        others: labels of the players of the other roles.
        others_contestant: the contestant they belong to, or "random".
        run, other_run: directories of their runs, None for fixed policies.
        pair: index of the pair of seeds.
        score: mean return of the role's agents over the episodes (and seats).
        num_episodes: over all seats.
        are_partners: whether player and others were trained together.
        returns: of each episode (its mean over the seats), NaN where no agent took part.
    """

    role: str
    player: str
    player_contestant: str
    others: str
    others_contestant: str
    run: Path | None
    other_run: Path | None
    pair: int
    score: float
    num_episodes: int
    are_partners: bool
    returns: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)


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
    of_contestants = [
        replace(m, player=m.player_contestant, others=m.others_contestant) for m in matches
    ]
    by_label = tuple(_cross_play(matches, role) for role in roles)
    by_contestant = tuple(_cross_play(of_contestants, role) for role in roles)
    is_same = all(
        len(a.players) == len(b.players) and len(a.others) == len(b.others)
        for a, b in zip(by_label, by_contestant, strict=True)
    )
    return by_label, () if is_same else by_contestant


def _cross_play(matches: Sequence[Match], role: str) -> CrossPlay:
    """Gathers the matches of a role by player and others."""
    groups: dict[tuple[str, str], list[Match]] = {}
    for match in matches:
        if match.role == role:
            groups.setdefault((match.player, match.others), []).append(match)
    players = tuple(dict.fromkeys(row for row, _ in groups))
    others = tuple(dict.fromkeys(column for _, column in groups))
    tables = {names: _by_pair(ours) for names, ours in groups.items()}
    # Only columns that all rows have met, weighted alike: easier others must not count as merit.
    common = [column for column in others if all((row, column) in tables for row in players)]
    met = [[tables[row, column] for column in common] for row in players]
    pairs = sorted(set.intersection(*(set(cell) for row in met for cell in row))) if common else []
    means = np.array([[np.mean([cell[pair] for cell in row]) for pair in pairs] for row in met])
    above = zip(players, means - means.mean(axis=0), strict=True) if pairs else ()
    merits = {row: mean_interval([by_pair]) for row, by_pair in above}
    found = _rate(players, [match for ours in groups.values() for match in ours])
    ratings = dict(zip(players, found.ratings, strict=False))
    cells = {
        (player, of): {
            "role": role,
            "player": player,
            "others": of,
            "return": _over_pairs(list(tables[player, of].values()), met),
            "num_pairs": len(tables[player, of]),
            "num_matches": len(met),
            "num_partners": sum(match.are_partners for match in met),
            "rating": ratings.get(player),
            "merit": merits.get(player),
        }
        for (player, of), met in groups.items()
    }
    cycles = tuple(tuple(players[i] for i in cycle) for cycle in found.cycles)
    return CrossPlay(role, cells, merits, ratings, cycles, found.num_triples)


def _rate(players: Sequence[str], matches: Sequence[Match]) -> Ratings:
    """Returns the ratings of the players, each two compared among the same others; none where
    random actions are not among them, or alone."""
    met: dict[tuple[int, str, str], dict[str, list[Floats]]] = {}
    for match in matches:
        place = met.setdefault((match.pair, match.others, match.others_contestant), {})
        place.setdefault(match.player, []).append(match.returns)
    wins: dict[int, Floats] = {}
    for (pair, _, _), by_player in met.items():
        if set(by_player) == set(players):  # as for merits
            won = wins_of([by_player[player] for player in players])
            wins[pair] = wins.get(pair, 0) + won
    if not wins or RANDOM not in players or len(players) == 1:
        return Ratings((), (), 0)
    by_pair = np.array(list(wins.values()))  # [num_pairs, num_episodes, num_players, num_players]
    units = by_pair.sum(axis=1) if len(wins) > 1 else by_pair[0]
    return rate(units, players.index(RANDOM))


def _by_pair(matches: Sequence[Match]) -> dict[int, float]:
    """For each pair of seeds, the mean over the matches that were played with it."""
    scores: dict[int, list[float]] = {}
    for match in matches:
        if math.isfinite(match.score):
            scores.setdefault(match.pair, []).append(match.score)
    return {pair: float(np.mean(found)) for pair, found in scores.items()}


def _over_pairs(scores: Sequence[float], matches: Sequence[Match]) -> Estimate:
    if not scores:
        return UNKNOWN
    if all(match.run is None and match.other_run is None for match in matches):
        # Fixed policies alone: other seeds are not other runs.
        return Estimate(float(np.mean(scores)), math.nan, math.nan)
    return interquartile_mean_interval([scores])


def frames_of(played: HeadToHead | None) -> dict[TableName, DataFrame]:
    """Returns the frames of a head to head, empty without one."""
    tables = played.by_label if played else ()
    matches = (
        {**vars(match), "return": match.score, "trained_together": match.are_partners}
        for match in (played.matches if played else ())
    )
    return {
        "matches": framed("matches", matches),
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
