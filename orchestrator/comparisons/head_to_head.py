"""The policies of one run meet those of another, in every role.

For each role, the policies that one run trained for it play among the others of another run, for
all pairs of contestants: so who is A's opponent in one place is A's opponent's opponent in another,
and no return of one role is set against a return of another. Roles that a user calls
interchangeable are rotated besides: the same policies play in every cyclic shift of the seats, and
a policy's return is its mean over the seats it had.

Runs are paired by seed: the k-th run of A meets the k-th of B. So matches of different pairs share
no run, the pair is the unit that is drawn again, and intervals speak of training on any seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxrl.orchestrator.comparisons.arena import (
    RANDOM,
    Arena,
    EpisodeReturns,
    Player,
    episode_seeds,
    player_of,
    random_player,
    rotations,
)
from muxrl.orchestrator.comparisons.contestants import Contestant
from muxrl.orchestrator.comparisons.roles import Subject
from muxrl.orchestrator.comparisons.sources import ComparedRun
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.records.recorded_run import Floats
from muxrl.orchestrator.reports.statistics import (
    Estimate,
    interquartile_mean_interval,
    mean_interval,
)


@dataclass(frozen=True)
class Lineup:
    """Who plays each role in all runs of one pair of seeds: a contestant, or a baseline.

    Attributes:
        label: the contestant's, or "random".
        players: for each pair of seeds, role to player.
    """

    label: str
    players: tuple[Mapping[str, Player], ...]


@dataclass(frozen=True)
class Match:
    """Episodes of one policy in one role among others, with one pair of seeds.

    Attributes:
        role: of the policy that is measured.
        player: who is measured: the label of its role.
        player_lineup: the contestant that it is of.
        others: who plays the other roles: their labels.
        others_lineup: the contestant that they are of.
        run, other_run: directories of their runs, None for what nobody trained.
        pair: index of the pair of seeds.
        score: mean return of the role's agents over the episodes (and seats).
        num_episodes: of these, over all seats.
        are_partners: whether they were trained together.
    """

    role: str
    player: str
    player_lineup: str
    others: str
    others_lineup: str
    run: Path | None
    other_run: Path | None
    pair: int
    score: float
    num_episodes: int
    are_partners: bool


@dataclass(frozen=True)
class Cell:
    """One player against some others, over pairs of seeds.

    Attributes:
        score: interquartile mean over pairs of seeds; no interval of one pair.
        num_pairs: of seeds.
        num_matches: of which it is made: players and others of one label may be of several
            contestants.
        num_partners: matches of policies that were trained together.
    """

    score: Estimate
    num_pairs: int
    num_matches: int
    num_partners: int


@dataclass(frozen=True)
class Matrix:
    """The cross-play of one role.

    Attributes:
        role: whose return it is.
        players: rows, those that play the role.
        others: columns, those that play the other roles.
        cells: by row and column; a pair that never met has none.
        merits: by row, the mean over all columns less that of all rows: what a player is worth
            in this role, against the same field for all; widened for small samples.
    """

    role: str
    players: tuple[str, ...]
    others: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    merits: Mapping[str, Estimate]


@dataclass(frozen=True)
class HeadToHead:
    """All cross-play.

    Attributes:
        by_label: for each role, players and others under the labels of their roles.
        by_contestant: the same under the contestants, where they tell more.
        matches: all that was played.
        pairs: the seeds that meet: one of each contestant for each pair.
        num_episodes: of each match and seat.
        first_seed: of these.
        interchangeable: roles whose seats were rotated.
        should_explore: whether stochastic policies were sampled.
    """

    by_label: tuple[Matrix, ...]
    by_contestant: tuple[Matrix, ...]
    matches: tuple[Match, ...]
    pairs: tuple[Mapping[str, int], ...]
    num_episodes: int
    first_seed: int
    interchangeable: tuple[str, ...]
    should_explore: bool


def play_head_to_head(
    arena: Arena,
    contestants: Sequence[Contestant],
    roles: Mapping[str, tuple[str, ...]],
    scripts: Mapping[str, Sequence[Player]],
    *,
    num_episodes: int,
    first_seed: int,
    should_explore: bool,
    interchangeable: Sequence[str] = (),
    on_match: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[HeadToHead, list[str]]:
    """Plays all pairs.

    Args:
        arena: of the runs' simulation.
        contestants: who meet.
        roles: role to its agents.
        scripts: role to scripted policies that meet them, too.
        num_episodes: of each match.
        first_seed: of the first episode; every match plays the same ones.
        should_explore: whether stochastic policies are sampled.
        interchangeable: roles whose seats are rotated.
        on_match: told how many matches are done, of how many.

    Returns:
        The results, and notes on what a reader must know.

    Raises:
        CannotCompare: there is one role alone, a checkpoint is missing, or does not fit.
    """
    if len(roles) < 2:
        raise CannotCompare(
            "head to head needs at least two roles, and every run gives all agents to one server; "
            "compare side by side, or name roles"
        )
    arena.check_interchangeable(interchangeable or [next(iter(roles))])
    pairs, notes = _pairs(contestants)
    lineups = [_lineup(c, roles, pairs, should_explore) for c in contestants]
    lineups += _baselines(lineups, roles, scripts, len(pairs))
    schedule = [
        (role, ours, theirs, pair)
        for pair in range(len(pairs))
        for ours in lineups
        for theirs in lineups
        for role in roles
        if role in ours.players[pair] and set(roles) <= {role, *theirs.players[pair]}
    ]
    games = _Games(arena, episode_seeds(first_seed, num_episodes), tuple(interchangeable))
    matches: dict[tuple[object, ...], Match] = {}
    for number, (role, ours, theirs, pair) in enumerate(schedule):
        match = _match(games, roles, role, ours, theirs, pair)
        # Random actions are the same in every lineup: they meet each opponent once.
        key = (role, ours.players[pair][role], tuple(_rest(theirs.players[pair], role)), pair)
        matches.setdefault(key, match)
        on_match(number + 1, len(schedule))
    played = tuple(matches.values())
    by_label = tuple(_matrix(played, role, "label") for role in roles)
    by_contestant = tuple(_matrix(played, role, "lineup") for role in roles)
    return (
        HeadToHead(
            by_label=by_label,
            by_contestant=() if _tell_the_same(by_label, by_contestant) else by_contestant,
            matches=played,
            pairs=pairs,
            num_episodes=num_episodes,
            first_seed=first_seed,
            interchangeable=tuple(interchangeable),
            should_explore=should_explore,
        ),
        notes,
    )


def _pairs(contestants: Sequence[Contestant]) -> tuple[tuple[Mapping[str, int], ...], list[str]]:
    """Returns which seeds meet: equal ones, or the k-th of each where none is common to all."""
    common = sorted(set.intersection(*(set(c.seeds) for c in contestants)))
    if common:
        unpaired = sorted({s for c in contestants for s in c.seeds} - set(common))
        note = (
            [f"head to head leaves out seeds that not every contestant has: {unpaired}"]
            if unpaired
            else []
        )
        return tuple({c.name: seed for c in contestants} for seed in common), note
    num = min(len(c.seeds) for c in contestants)
    return (
        tuple({c.name: c.seeds[i] for c in contestants} for i in range(num)),
        ["no seed is common to all contestants, so that their runs meet in the order of seeds"],
    )


def _lineup(
    contestant: Contestant,
    roles: Mapping[str, tuple[str, ...]],
    pairs: Sequence[Mapping[str, int]],
    should_explore: bool,
) -> Lineup:
    runs: dict[int, ComparedRun] = {run.seed: run for run in contestant.runs}
    return Lineup(
        contestant.name,
        tuple(
            {
                role: player_of(
                    runs[pair[contestant.name]],
                    role,
                    agents,
                    contestant.played[role],
                    should_explore=should_explore,
                )
                for role, agents in roles.items()
            }
            for pair in pairs
        ),
    )


def _baselines(
    lineups: Sequence[Lineup],
    roles: Mapping[str, tuple[str, ...]],
    scripts: Mapping[str, Sequence[Player]],
    num_pairs: int,
) -> list[Lineup]:
    """Random actions in every role; scripted policies in theirs, those that are in no run yet."""
    random = {role: random_player(role, agents) for role, agents in roles.items()}
    found = [Lineup(RANDOM, (random,) * num_pairs)]
    known = {
        (player.home, player.label)
        for lineup in lineups
        for players in lineup.players
        for player in players.values()
        if player.run is None
    }
    by_label: dict[str, dict[str, Player]] = {}
    for role, players in scripts.items():
        for player in players:
            if (role, player.label) not in known:
                by_label.setdefault(player.label, {})[role] = player
    return found + [Lineup(label, (alone,) * num_pairs) for label, alone in by_label.items()]


@dataclass
class _Games:
    """Plays seatings, each once: two roles share the games of one pair."""

    arena: Arena
    seeds: tuple[int, ...]
    interchangeable: tuple[str, ...]

    def __post_init__(self) -> None:
        self._played: dict[tuple[tuple[str, Player], ...], EpisodeReturns] = {}

    def returns(self, seating: Mapping[str, Player]) -> EpisodeReturns:
        """By agent and episode."""
        key = tuple(sorted(seating.items(), key=lambda item: item[0]))
        if key not in self._played:
            self._played[key] = self.arena.play(seating, self.seeds)
        return self._played[key]


def _match(
    games: _Games,
    roles: Mapping[str, tuple[str, ...]],
    role: str,
    ours: Lineup,
    theirs: Lineup,
    pair: int,
) -> Match:
    player, others = ours.players[pair][role], theirs.players[pair]
    seating = {r: player if r == role else others[r] for r in roles}
    classes = games.interchangeable if role in games.interchangeable else (role,)
    scores: list[Floats] = []
    for shift in rotations(classes):
        seated = {shift.get(home, home): who for home, who in seating.items()}
        seat = shift[role]
        subject = Subject("role", seat, roles[seat])
        scores.append(subject.returns(games.returns(seated)))
    rest = _rest(others, role)
    returns = np.concatenate(scores)
    returns = returns[np.isfinite(returns)]
    return Match(
        role=role,
        player=player.label,
        player_lineup=RANDOM if player.label == RANDOM else ours.label,
        others=" | ".join(
            who.label if len(rest) == 1 else f"{who.label} {who.home}" for who in rest
        ),
        others_lineup=RANDOM if all(who.label == RANDOM for who in rest) else theirs.label,
        run=player.run_path,
        other_run=next((who.run_path for who in rest if who.run_path is not None), None),
        pair=pair,
        score=float(returns.mean()) if len(returns) else math.nan,
        num_episodes=len(returns),
        are_partners=player.run is not None
        and any(who.run_path == player.run_path for who in rest),
    )


def _rest(players: Mapping[str, Player], role: str) -> list[Player]:
    return [player for home, player in players.items() if home != role]


def _matrix(matches: Sequence[Match], role: str, by: str) -> Matrix:
    """Gathers the matches of a role by label, or by lineup."""
    groups: dict[tuple[str, str], list[Match]] = {}
    for match in matches:
        if match.role == role:
            names = (
                (match.player, match.others)
                if by == "label"
                else (match.player_lineup, match.others_lineup)
            )
            groups.setdefault(names, []).append(match)
    players = tuple(dict.fromkeys(row for row, _ in groups))
    others = tuple(dict.fromkeys(column for _, column in groups))
    tables = {names: _by_pair(ours) for names, ours in groups.items()}
    cells = {
        names: Cell(
            score=_over_pairs(list(table.values()), groups[names]),
            num_pairs=len(table),
            num_matches=len(groups[names]),
            num_partners=sum(match.are_partners for match in groups[names]),
        )
        for names, table in tables.items()
    }
    # Only against others that all have met, or a field of its own would be its merit.
    field = [column for column in others if all((row, column) in tables for row in players)]
    by_row = {row: _row(tables, row, field) for row in players} if field else {}
    pairs = sorted(set.intersection(*map(set, by_row.values()))) if by_row else []
    merits = {}
    for row in players if pairs else ():
        above = [
            by_row[row][pair] - float(np.mean([by_row[each][pair] for each in players]))
            for pair in pairs
        ]
        merits[row] = mean_interval([above])
    return Matrix(role, players, others, cells, merits)


def _by_pair(matches: Sequence[Match]) -> dict[int, float]:
    """For each pair of seeds, the mean over the matches that were played with it."""
    scores: dict[int, list[float]] = {}
    for match in matches:
        if math.isfinite(match.score):
            scores.setdefault(match.pair, []).append(match.score)
    return {pair: float(np.mean(found)) for pair, found in scores.items()}


def _row(
    tables: Mapping[tuple[str, str], Mapping[int, float]], row: str, field: Sequence[str]
) -> dict[int, float]:
    """For each pair of seeds that all cells have, the mean over a row, every column alike."""
    ours = [tables[row, column] for column in field]
    common = set.intersection(*map(set, ours))
    return {pair: float(np.mean([cell[pair] for cell in ours])) for pair in common}


def _over_pairs(scores: Sequence[float], matches: Sequence[Match]) -> Estimate:
    if not scores:
        return Estimate(math.nan, math.nan, math.nan)
    if all(match.run is None and match.other_run is None for match in matches):
        # Nothing in it was trained: other seeds are no other runs.
        return Estimate(float(np.mean(scores)), math.nan, math.nan)
    return interquartile_mean_interval([scores])


def _tell_the_same(first: Sequence[Matrix], second: Sequence[Matrix]) -> bool:
    return all(
        len(a.players) == len(b.players) and len(a.others) == len(b.others)
        for a, b in zip(first, second, strict=True)
    )


def describe_pairs(head_to_head: HeadToHead) -> str:
    """Which seeds met, in words."""
    equal = [pair for pair in head_to_head.pairs if len(set(pair.values())) == 1]
    if len(equal) == len(head_to_head.pairs):
        return f"runs of equal seeds meet (seeds {listed(str(_any(p)) for p in equal)})"
    return f"{len(head_to_head.pairs)} runs of each contestant meet, in the order of their seeds"


def _any(pair: Mapping[str, int]) -> int:
    return next(iter(pair.values()))
