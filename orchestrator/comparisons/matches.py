"""Plays a comparison's episodes: baselines, and matches of one run's policies among another's.

Baselines have fixed policies only: random ones in all roles, or one scripted policy among random
ones. In the head to head, the policies that one run trained for a role play among another run's
policies of the other roles, for each role and all pairs of contestants. Roles that the user calls
interchangeable are rotated: the same policies play in every cyclic shift of the seats, and a
policy's return is its mean over its seats. Runs are paired by seed: the k-th run of A meets the
k-th run of B. A game is played once, even if several matches, rounds, or reruns of a command need
it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.client.env_loop import SimulationFailed
from muxrl.orchestrator.comparisons.arena import Arena, player_of, random_players, rotations
from muxrl.orchestrator.comparisons.findings.contestants import (
    Contestant,
    Roles,
    server_of_role,
)
from muxrl.orchestrator.comparisons.findings.frames import BASELINE
from muxrl.orchestrator.comparisons.findings.head_to_head import (
    RANDOM,
    CrossPlay,
    HeadToHead,
    Match,
    stage,
    tables_of,
)
from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.merge import flat
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import CannotCompare, RunFailed
from muxrl.orchestrator.evaluations.frozen import Player, on_free_port
from muxrl.orchestrator.measure.run_notes import TOLERANCE
from muxrl.orchestrator.measure.statistics import Unit, are_won_or_lost, estimate_of
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.orchestrator.records.series import Floats
from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder, Manifest
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.storage.versions import software_versions
from muxrl.protocol.suggestions import listed
from muxrl.servers.config import ServerConfig
from muxrl.servers.fixed_names import POOL, is_fixed
from muxrl.servers.training.policies import ServerProblem

Game = tuple[Mapping[str, Player], range]
"""Role to its player, and the seeds of the episodes."""
Pair = Mapping[str, RecordedRun]
"""By contestant's name: its run; the runs of a pair meet each other."""
_FORMAT = 1
Scripts = Mapping[str, Mapping[str, Player]]
"""Label of a scripted policy to role to its player."""
Snapshots = Mapping[int, Mapping[RecordedRun, str]]
"""By env steps, fewest first: the checkpoint's name of each run that learns."""


@dataclass(frozen=True)
class Profile:
    """The players of each role: a contestant's policies, or a baseline's.

    Attributes:
        label: the contestant's name, "random", or the label of a scripted policy.
        players: for each pair of seeds, role to player.
    """

    label: str
    players: tuple[Mapping[str, Player], ...]


def play_head_to_head(
    arena: Arena,
    contestants: Sequence[Contestant],
    roles: Roles,
    scripts: Scripts,
    num_episodes: int,
    *,
    should_explore: bool,
    checkpoint: str = LAST,
    snapshots: Snapshots | None = None,
    interchangeable: Sequence[str] = (),
    known: dict[str, AgentReturns] | None = None,
) -> tuple[HeadToHead, list[str]]:
    """Plays all matches of a head to head.

    Args:
        arena: of the runs' simulation.
        contestants: the contestants that meet.
        roles: role to its agents.
        scripts: scripted policies that meet the contestants, too.
        num_episodes: of each match. All matches of a pair of seeds play the same episodes, which
            begin at the seed of its evaluations. Every pair plays other episodes, so that
            intervals also cover the luck of the episodes.
        should_explore: whether stochastic policies are sampled.
        checkpoint: name of the checkpoint of each run.
        snapshots: checkpoints that play instead, if given; see `find_snapshots`.
        interchangeable: roles whose seats are rotated.
        known: by `key_of`: returns of games that were played; new games are added.

    Returns:
        The results, and notes on them.

    Raises:
        CannotCompare: there is only one role, or a checkpoint is missing or does not fit.
    """
    if len(roles) < 2:
        raise CannotCompare(
            "head to head needs at least two roles, and every run gives all agents to one server; "
            "compare without head to head, or name roles"
        )
    arena.check_interchangeable(interchangeable or [next(iter(roles))])
    pairs, notes = _pairs(contestants)
    stages = [(stage(n), names) for n, names in (snapshots or {}).items()]
    profiles = [
        _profile(c, roles, pairs, should_explore, checkpoint, *at)
        for c in contestants
        for at in (stages if stages and c.learns else [("", {})])
    ]
    random = random_players(contestants[0].runs[0], roles)
    profiles += _baselines(profiles, random, scripts, len(pairs))
    starts = _first_seeds(contestants[0], pairs, num_episodes)
    known = {} if known is None else known
    games: dict[str, Game] = {}
    meetings: dict[tuple[object, ...], tuple[dict[str, Subject], dict[str, Any]]] = {}
    for pair, ours, theirs, role in product(range(len(pairs)), profiles, profiles, roles):
        if role not in ours.players[pair] or not set(roles) <= {role, *theirs.players[pair]}:
            continue
        player, others = ours.players[pair][role], theirs.players[pair]
        # Several profiles can have the same players (random ones): these meet only once.
        meeting = (role, player, tuple(_rest(others, role)), pair)
        if meeting in meetings:
            continue
        seeds = range(starts[pair], starts[pair] + num_episodes)
        subjects = {}
        for shift in rotations(interchangeable if role in interchangeable else (role,)):
            seated = {shift.get(r, r): player if r == role else others[r] for r in roles}
            key, seat = key_of(seated, seeds), shift[role]
            games[key], subjects[key] = (seated, seeds), Subject("role", seat, roles[seat])
        meetings[meeting] = subjects, _about(role, ours, theirs, pair)
    play(arena, games, known, "head to head")  # matches of different roles share games
    played = tuple(
        scored([subject.returns(known[key]) for key, subject in subjects.items()], **about)
        for subjects, about in meetings.values()
    )
    by_label, by_contestant = tables_of(played, list(roles))
    notes += cycle_notes(by_label)
    if checkpoint != LAST:
        notes.append(f"in the head to head, all policies are from the checkpoint {checkpoint!r}")
    return (
        HeadToHead(
            by_label=by_label,
            by_contestant=by_contestant,
            matches=played,
            pairs=tuple({who: run.config.seed for who, run in pair.items()} for pair in pairs),
            num_episodes=num_episodes,
            first_seed=starts[0],
            interchangeable=tuple(interchangeable),
            should_explore=should_explore,
            snapshots=tuple(snapshots or ()),
            players={role: _players(profiles, role) for role in roles},
        ),
        notes,
    )


def _players(profiles: Sequence[Profile], role: str) -> list[dict[str, Any]]:
    """Returns a row for each player of a role that a POOL can hold; see `HeadToHead.players`."""
    seated = (players[role] for p in profiles for players in p.players if role in players)
    return [
        {"player": who.label, "algorithm": who.server.algorithm, "settings": who.server.settings}
        for who in dict.fromkeys(seated)
        if is_fixed(who.server.algorithm) and who.server.algorithm.upper() != POOL
    ]


def cycle_notes(tables: Sequence[CrossPlay]) -> Iterator[str]:
    """Yields notes on roles in which players beat each other in cycles, so that ratings mislead."""
    for table in tables:
        if table.cycles:
            cycle = " over ".join((*table.cycles[0], table.cycles[0][0]))
            yield (
                f"as {table.role}, {len(table.cycles)} of {table.num_triples} triples of players "
                f"form a cycle ({cycle}); ratings mislead about them, so read the table of payoffs"
            )


def check_equal_training(runs: Sequence[RecordedRun], checkpoint: str) -> None:
    """Refuses a head to head of policies that were trained for different numbers of env steps.

    Best checkpoints may be from any moment; their runs must be equally long.

    Raises:
        CannotCompare: the numbers differ by more than `TOLERANCE`.
        CannotResume: a checkpoint's manifest is broken.
    """
    trained: dict[RecordedRun, int] = {}
    for run in runs:
        if run.learns and not checkpoint.isdecimal():  # else its name says the env steps
            place = CheckpointFolder(run.path / "checkpoints").find()
            num = Manifest.read(place).env_steps if place else run.points[-1].env_steps
            # Steps of episodes beyond the end do not count here, see `extra_steps_notes`.
            trained[run] = min(num, run.config.stop.env_steps or num)
    if not trained:
        return
    short, long = min(trained, key=trained.__getitem__), max(trained, key=trained.__getitem__)
    if trained[short] < trained[long] * (1 - TOLERANCE):
        raise CannotCompare(
            f"head to head needs equal budgets: the policies of run {short.name!r} were trained "
            f"for {trained[short]:,} env steps, those of {long.name!r} for {trained[long]:,}; "
            "choose a checkpoint that all have (--checkpoint), leave out the others, or compare "
            "without head to head"
        )


def find_snapshots(runs: Sequence[RecordedRun]) -> Snapshots:
    """Returns the checkpoints at env steps at which all runs that learn have one.

    With ``checkpoint.keep_every_env_steps``, env steps are rounded down to its multiples, since
    each run writes checkpoints where its episodes end.

    Raises:
        CannotCompare: the runs have less than two such checkpoints in common.
    """
    saved: dict[RecordedRun, dict[int, str]] = {}
    for run in runs:
        if run.learns:
            folder = CheckpointFolder(run.path / "checkpoints")
            every = run.config.checkpoint.keep_every_env_steps
            found = folder.snapshots(every) if every else folder.env_steps
            saved[run] = {n // (every or 1) * (every or 1): str(n) for n in found}
    common = sorted(set.intersection(*map(set, saved.values()))) if saved else []
    if len(common) < 2:
        stages_text = "; ".join(
            f"{run.name!r} has {listed(names.values())}" for run, names in saved.items()
        )
        raise CannotCompare(
            "to compare snapshots, all runs that learn must have kept them at the same env steps, "
            f"at least twice, and they have {len(common)} in common: "
            f"{stages_text or 'no run learns'}; set checkpoint.keep_every_env_steps"
        )
    return {n: {run: names[n] for run, names in saved.items()} for n in common}


def _pairs(contestants: Sequence[Contestant]) -> tuple[list[Pair], list[str]]:
    """Returns the runs that meet: those of equal seeds, or the k-th if no seed is common."""
    by_seed = {c.name: dict(zip(c.seeds, c.runs, strict=True)) for c in contestants}
    common = set.intersection(*map(set, by_seed.values()))
    if not common:
        met = zip(*(contestant.runs for contestant in contestants), strict=False)
        note = (
            "no seed is common to all contestants, so their runs are paired in the order of seeds"
        )
        return [dict(zip(by_seed, runs, strict=True)) for runs in met], [note]
    notes = []
    if unpaired := sorted(set().union(*by_seed.values()) - common):
        notes.append(f"head to head leaves out seeds that not every contestant has: {unpaired}")
    return [{name: of[seed] for name, of in by_seed.items()} for seed in sorted(common)], notes


def _first_seeds(contestant: Contestant, pairs: Sequence[Pair], num_episodes: int) -> list[int]:
    """Returns the seed of each pair's first episode: that of a run's evaluations if all differ."""
    found = [evaluation_seed(pair[contestant.name].config) for pair in pairs]
    if len(set(found)) < len(found):
        return [found[0] + place * num_episodes for place in range(len(found))]
    return found


def _profile(
    contestant: Contestant,
    roles: Roles,
    pairs: Sequence[Pair],
    should_explore: bool,
    checkpoint: str,
    suffix: str,
    names: Mapping[RecordedRun, str],
) -> Profile:
    def player(run: RecordedRun, role: str) -> Player:
        found = player_of(
            run,
            role,
            roles[role],
            contestant.played[role] + suffix,
            should_explore=should_explore,
            checkpoint=names.get(run, checkpoint),
        )
        # Policies without training are the same at all env steps.
        return found if found.run else replace(found, label=found.label.removesuffix(suffix))

    return Profile(
        contestant.name + suffix,
        tuple({role: player(pair[contestant.name], role) for role in roles} for pair in pairs),
    )


def _baselines(
    profiles: Sequence[Profile], random: Mapping[str, Player], scripts: Scripts, num_pairs: int
) -> list[Profile]:
    """Returns random players in every role, and the scripted policies that no run has."""
    found = [Profile(RANDOM, (random,) * num_pairs)]
    known = {
        (player.home, player.label)
        for profile in profiles
        for players in profile.players
        for player in players.values()
        if player.run is None
    }
    for label, players in scripts.items():
        alone = {role: who for role, who in players.items() if (role, label) not in known}
        if alone:
            found.append(Profile(label, (alone,) * num_pairs))
    return found


def _about(role: str, ours: Profile, theirs: Profile, pair: int) -> dict[str, Any]:
    """Returns the attributes of a match that are known before it is played."""
    player, rest = ours.players[pair][role], _rest(theirs.players[pair], role)
    return {
        "role": role,
        "player": player.label,
        "player_contestant": RANDOM if player.label == RANDOM else ours.label,
        "others": " | ".join(
            who.label if len(rest) == 1 else f"{who.label} {who.home}" for who in rest
        ),
        "others_contestant": RANDOM if all(who.label == RANDOM for who in rest) else theirs.label,
        "run": player.run,
        "other_run": next((who.run for who in rest if who.run is not None), None),
        "pair": pair,
        "trained_together": ours is theirs
        and player.run is not None
        and any(who.run == player.run for who in rest),
    }


def _rest(players: Mapping[str, Player], role: str) -> list[Player]:
    return [player for home, player in players.items() if home != role]


def find_scripts(
    contestants: Sequence[Contestant], roles: Roles, of_sweep: Mapping[str, Sequence[ServerConfig]]
) -> dict[str, dict[str, Player]]:
    """Returns the scripted policies of runs and sweeps: label to role to player."""
    found = [
        (role, contestant.played[role], server)
        for contestant in contestants
        for role, agents in roles.items()
        if (server := server_of_role(contestant.runs[0], agents)[1]).algorithm.upper() == "SCRIPTED"
    ]
    found += [(role, server.label, server) for role, some in of_sweep.items() for server in some]
    order = list(dict.fromkeys(role for role, _, _ in found))
    by_label: dict[str, dict[str, Player]] = {}
    for role, label, server in sorted(found, key=lambda one: order.index(one[0])):
        who = Player(on_free_port(server), label, role)  # the port in the run's config may be taken
        by_label.setdefault(label, {}).setdefault(role, who)
    return by_label


def play_baselines(
    arena: Arena,
    subjects: Sequence[Subject],
    random: Mapping[str, Player],
    scripts: Scripts,
    seeds: Sequence[int],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Plays random policies in all roles, then each scripted policy among random ones.

    Args:
        arena: of the runs' simulation.
        subjects: the subjects whose returns are measured.
        random: role to its random player.
        scripts: scripted policies; those of one label play together.
        seeds: one for each episode.

    Returns:
        The baselines' rows of the frame "standings", random ones first, and a note for each
        scripted policy that could not be played.

    Raises:
        SimulationFailed: the simulation raised with random agents.
    """
    doing("baselines", "random")
    played, notes = [(RANDOM, arena.play_at_random(random, seeds))], []
    for label, theirs in scripts.items():
        seating = {**random, **theirs}
        name = " | ".join(f"{player.label} {role}" for role, player in seating.items())
        doing("baselines", label)
        try:
            played.append((name, arena.play(seating, seeds)))
        except (CannotCompare, RunFailed, ServerProblem, SimulationFailed) as error:
            notes.append(
                f"the scripted policy {label!r} could not be played as a baseline: {error}"
            )
    rows = []
    # Games have returns, but no metrics.
    for (name, by_agent), subject in product(played, (s for s in subjects if s.kind != "metric")):
        values = subject.returns(by_agent)
        values = values[np.isfinite(values)]
        if len(values):
            is_proportion = are_won_or_lost([values])
            mean = estimate_of([values], Unit.EPISODES, is_proportion=is_proportion)
            about = {"contestant": BASELINE + name, "subject": subject.key, "mean": mean}
            rows.append({**about, "num_runs": 0, "num_episodes": len(seeds), "is_baseline": True})
    return rows, notes


def play(arena: Arena, games: Mapping[str, Game], known: dict[str, AgentReturns], at: str) -> None:
    """Plays the games whose returns are not known, and adds their returns.

    Args:
        arena: of the games' simulation.
        games: by key: the games.
        known: by key: each agent's return in each episode.
        at: name of the activity that is shown meanwhile.

    Raises:
        CannotCompare, ServerProblem, SimulationFailed: as `Arena.play`.
    """
    todo = [key for key in games if key not in known]
    for place, key in enumerate(todo, 1):
        doing(at, f"game {place:,} of {len(todo):,}")
        known[key] = arena.play(*games[key])


def scored(returns: Sequence[Floats], **about: Any) -> Match:
    """Returns a match with its score.

    Args:
        returns: of each seat: the return in each episode.
        about: the other columns of the match.
    """
    seen = np.concatenate(returns)
    seen = seen[np.isfinite(seen)]
    score = float(seen.mean()) if len(seen) else math.nan
    of_seats = {"num_episodes": len(seen), "returns": np.mean(returns, axis=0)}
    return {"return": score, **of_seats, **about}


def key_of(seating: Mapping[str, Player], seeds: range) -> str:
    """Returns a hash that identifies a game by its players, their weights, and its episodes."""
    players = [
        [role, who.label, who.home, who.run, who.should_explore, *_served(who)]
        for role, who in sorted(seating.items())
    ]
    text = json.dumps([players, seeds.start, len(seeds)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _served(player: Player) -> list[Any]:
    """Returns the settings of a player's server, and when its checkpoints were written."""
    settings = flat(player.server)
    paths = [value for key, value in settings.items() if key.endswith(".checkpoint")]
    found = [Path(path) for path in (*paths, player.resume_from) if path]
    written = [path.stat().st_mtime_ns for path in found if path.exists()]
    return [settings, player.resume_from, written]


@contextlib.contextmanager
def kept(path: Path | None, config: ExperimentConfig) -> Iterator[dict[str, AgentReturns]]:
    """Yields the games in a file, by `key_of`, and at the end writes them and new ones.

    Games are kept for one experiment and one state of the software. If either has changed, or if
    sources were changed after their last commit, the games are played again.

    Args:
        path: of the file; None: nothing is kept.
        config: of the experiment.

    Raises:
        OSError: the file cannot be written.
    """
    versions = software_versions(config.simulation.env) if path else {}
    if path is None or any(str(version).endswith("-dirty") for version in versions.values()):
        yield {}
        return
    of = {"evaluation": asdict(config.evaluation), "simulation": asdict(config.simulation)}
    about = json.loads(json.dumps({"format": _FORMAT, **of, "versions": versions}, default=str))
    known: dict[str, AgentReturns] = {}
    with contextlib.suppress(OSError, ValueError):
        before = json.loads(path.read_text(encoding="utf-8"))
        known = before["games"] if before["about"] == about else {}
    try:
        yield known
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"about": about, "games": known})
