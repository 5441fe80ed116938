"""Plays the games after each round, in which all archived members and random actions meet.

Each entry of a role plays against the entries of the other roles. With two roles it meets each
entry of the other role; with more, the entries of each round play together. Of interchangeable
roles only the first that has a member is rated. Games are kept, so that a round adds only the games
of its own entries. Ratings and payoffs are computed as for a head to head.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.arena import Arena, player_of, random_player
from muxrl.orchestrator.comparisons.findings.compared_runs import read_run
from muxrl.orchestrator.comparisons.findings.head_to_head import RANDOM, HeadToHead, tables_of
from muxrl.orchestrator.comparisons.matches import play, scored
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.evaluations.frozen import Player
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.population import Entry, League
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.protocol.patterns import match
from muxrl.servers.fixed_policies.meta_game import MetaGame

logger = logging.getLogger(__name__)

Seating = Mapping[str, Entry | None]
"""By role: the entry that plays it; None: random actions."""


def heads(league: League) -> list[str]:
    """Returns the roles whose players are rated."""
    taken: set[str] = set()
    found = []
    for role in league.agents:
        if role not in taken and any(m.role == role for m in league.config.members.values()):
            found.append(role)
            taken.update(league.alike(role))
    return found


def seatings(league: League, entries: Sequence[Entry]) -> Iterator[tuple[str, Seating]]:
    """Yields each game: the role whose player is rated, and the seating, with that role first."""
    for head in heads(league):
        rows = [entry for entry in entries if entry.role in league.alike(head)]
        for row in (*rows, None):
            for others in _others(league, head, entries):
                yield head, {head: row, **others}


def _others(league: League, head: str, entries: Sequence[Entry]) -> list[Seating]:
    """Returns the seatings of the other roles: each round's k-th players together, and random."""
    roles = [role for role in league.agents if role != head]
    found: dict[tuple[Entry | None, ...], Seating] = {}
    for number in dict.fromkeys(entry.round for entry in entries):
        known = [entry for entry in entries if entry.round <= number]
        those = {role: [e for e in known if e.role in league.alike(role)] for role in roles}
        new = {role: [e for e in own if e.round == number] for role, own in those.items()}
        for k in range(max(map(len, new.values()))):
            seated: dict[str, Entry | None] = {}
            for role, own in those.items():
                players = new[role] or own[-1:]
                seated[role] = players[k % len(players)] if players else None
            found.setdefault(tuple(seated.values()), seated)
    found[(None,) * len(roles)] = dict.fromkeys(roles)
    return list(found.values())


def _seats(seating: Seating) -> dict[str, str]:
    return {role: entry.label if entry else RANDOM for role, entry in sorted(seating.items())}


def _key(seating: Seating) -> str:
    return str(_seats(seating))


def play_games(league: League, folder: LeagueDirectory, number: int) -> None:
    """Plays the games that a round adds, and writes them; equal seeds give equal games.

    Raises:
        CannotCompare: a checkpoint is missing.
        ServerProblem, SimulationFailed: as for `Arena.play`.
    """
    entries = league.entries(folder, number)
    known = _played(folder, number - 1)
    todo = {
        key: seating
        for _, seating in seatings(league, entries)
        if (key := _key(seating)) not in known
    }
    experiment = league.config.experiment
    first_seed = evaluation_seed(experiment)
    seeds = range(first_seed, first_seed + league.config.num_episodes)
    run = read_run(entries[0].run)
    rest = {  # servers with fixed policies that serve no role
        server_id: match(server.agents, list(league.facts.agents))[0]
        for server_id, server in run.config.servers.items()
        if server_id not in league.agents
    }
    how: Any = {"should_explore": experiment.evaluation.should_explore}
    always = {role: player_of(run, role, agents, role, **how) for role, agents in rest.items()}
    roles = {role: tuple(agents) for role, agents in {**league.agents, **rest}.items()}

    @cache
    def player(entry: Entry | None, role: str) -> Player:
        if entry is None:
            return random_player(run, role, roles[role])
        whose = read_run(entry.run), entry.role, roles[entry.role], entry.label
        return player_of(*whose, **how)

    games = {
        key: ({role: player(entry, role) for role, entry in seating.items()} | always, seeds)
        for key, seating in todo.items()
    }
    with Arena(experiment, roles) as arena:
        play(arena, games, known, f"games after round {number}")
        for note in arena.notes():
            logger.warning("round %d: %s", number, note)
    new = [{"seats": _seats(seating), "returns": known[key]} for key, seating in todo.items()]
    folder.write_games(number, {"format": 1, "num_episodes": len(seeds), "games": new})


def _played(folder: LeagueDirectory, last: int) -> dict[str, AgentReturns]:
    """Returns by `_key` the returns of all games up to a round."""
    written = [folder.games(number) or {"games": ()} for number in range(1, last + 1)]
    return {str(game["seats"]): game["returns"] for one in written for game in one["games"]}


def solve(
    league: League,
    folder: LeagueDirectory,
    last: int,
    kind: str,
    met: Mapping[str, Sequence[Entry]] | None = None,
) -> dict[str, dict[str, float]] | str:
    """Returns how often entries are played in a solution of the games up to a round.

    Args:
        league: of two roles; random actions play a role without entries.
        folder: the league's directory.
        last: the round.
        kind: of solution; see `MetaGame.weights`.
        met: by role: the entries that count; of a role that is missing, all.

    Returns:
        By role and label: weights, which sum to 1; or a sentence why there is no such solution.
    """
    entries, played = league.entries(folder, last), _played(folder, last)
    (first, rows), (second, columns) = (
        (role, (met or {}).get(role) or [e for e in entries if e.role in league.alike(role)])
        for role in league.agents
    )
    none: list[Entry | None] = [None]  # random actions
    pairs = [[{first: a, second: b} for b in columns or none] for a in rows or none]
    games = [[played[_key(pair)] for pair in row] for row in pairs]
    subjects = [Subject("role", role, tuple(agents)) for role, agents in league.agents.items()]
    payoffs = [
        [[np.nan_to_num(s.returns(game)).mean() for game in row] for row in games] for s in subjects
    ]  # NaN: no agent of the role took part
    found = MetaGame(np.array(payoffs), is_symmetric=rows == columns).weights(kind)
    if isinstance(found, str):
        return found
    sides = (first, rows, found[0]), (second, columns, found[1])
    return {
        role: {entry.label: float(weight) for entry, weight in zip(own, weights, strict=False)}
        for role, own, weights in sides
    }


def meet(league: League, folder: LeagueDirectory, last: int) -> HeadToHead:
    """Returns the games up to a round as a head to head, in which rounds are the snapshots."""
    entries = league.entries(folder, last)
    played = _played(folder, last)
    matches = []
    for role, seating in seatings(league, entries):
        subject = Subject("role", role, tuple(league.agents[role]))
        rest = [entry for other, entry in seating.items() if other != role]
        own, others = seating[role], next(filter(None, rest), None)
        name = own.label if own else RANDOM
        against = " | ".join(entry.label if entry else RANDOM for entry in rest)
        against = against if others else RANDOM
        matches.append(
            scored(
                [subject.returns(played[_key(seating)])],
                role=role,
                player=name,
                player_contestant=name,
                others=against,
                others_contestant=against,
                run=own.run if own else None,
                other_run=others.run if others else None,
                pair=0,
                trained_together=False,
            )
        )
    evaluation = league.config.experiment.evaluation
    return HeadToHead(
        by_label=tables_of(matches, heads(league))[0],
        by_contestant=(),
        matches=tuple(matches),
        pairs=({},),
        num_episodes=league.config.num_episodes,
        first_seed=evaluation_seed(league.config.experiment),
        interchangeable=tuple(league.config.interchangeable),
        should_explore=evaluation.should_explore,
        snapshots=tuple(dict.fromkeys(entry.round for entry in entries)),
    )
