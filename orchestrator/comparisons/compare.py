"""From runs to a comparison: read, measured, played, and gathered.

::

    comparison = compare_runs(["sweeps/tag-20261121-101500"], should_meet=True)
    comparison.frame()                 # pandas, one row for each run and subject
    comparison.write("comparison")     # report.html and its data
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from muxrl.orchestrator.comparisons.arena import Arena, Player, episode_seeds, random_player
from muxrl.orchestrator.comparisons.comparison import Baseline, Comparison
from muxrl.orchestrator.comparisons.contestants import Contestant, find_contestants, server_of_role
from muxrl.orchestrator.comparisons.head_to_head import HeadToHead, play_head_to_head
from muxrl.orchestrator.comparisons.roles import Subject, find_roles, find_subjects
from muxrl.orchestrator.comparisons.side_by_side import (
    TOLERANCE,
    Budget,
    RoleResult,
    Standing,
    default_thresholds,
    find_budget,
    role_results,
    score_runs,
    standings_of,
)
from muxrl.orchestrator.comparisons.sources import ComparedRun, read_sources
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.reports.statistics import mean_interval
from muxrl.orchestrator.sweeps.directory import TRIALS_FILE
from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.config import ServerConfig

_FEW_SEEDS = 5
"""Below this, a percentile interval of an interquartile mean covers clearly less than it says."""
_COVERAGE = {2: 50, 3: 75, 4: 87}
"""By number of runs, how often it does, in per cent; see the tests of `statistics`."""
_FEW_EPISODES = 20


def compare_runs(
    paths: Sequence[str | Path],
    *,
    num_episodes: int = 100,
    should_meet: bool = False,
    roles: Mapping[str, Sequence[str]] | None = None,
    interchangeable: Sequence[str] = (),
    budget: int | None = None,
    thresholds: Mapping[str, float] | None = None,
    should_explore: bool | None = None,
    on_match: Callable[[int, int], None] = lambda done, of: None,
) -> Comparison:
    """Compares runs of one simulation.

    Args:
        paths: run directories, or sweep directories, whose finished runs are taken.
        num_episodes: of whatever is played here: the baselines and each match.
        should_meet: whether policies of different runs meet head to head.
        roles: role to agent patterns; None: as a sweep names them, else the agents that every
            run gives to one server together.
        interchangeable: roles whose seats are rotated in the head to head.
        budget: env steps at which runs are compared; None: the most that all have.
        thresholds: by subject's key (``role:prey``, ``total``), the return whose first reaching
            is reported; missing ones lie halfway from random to the best contestant.
        should_explore: whether stochastic policies are sampled where they meet; None: as in the
            runs' own evaluations.
        on_match: told how many matches are done, of how many.

    Raises:
        CannotCompare: the runs cannot be compared as asked for.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        ServerProblem: a player's server could not be started.
        SimulationFailed: the simulation raised.
    """
    if num_episodes < 1:
        raise CannotCompare(f"the number of episodes is {num_episodes}, must be at least 1")
    sources = read_sources([Path(path) for path in paths])
    runs = sources.runs
    role_agents = find_roles(runs, sources.roles if roles is None else roles)
    contestants = find_contestants(runs, role_agents)
    subjects = find_subjects(runs, role_agents)
    _check_thresholds(thresholds or {}, subjects)
    at = find_budget(runs, budget)
    rule = next((r.recorded.should_explore for r in runs if r.recorded.should_explore), False)
    meeting_rule = bool(rule) if should_explore is None else should_explore
    notes = [*sources.notes, *_budget_notes(runs, at)]
    if should_meet and at.is_cut and budget is None:
        raise CannotCompare(
            f"head to head needs equal budgets: runs were trained for up to {at.longest:,} env "
            f"steps, the shortest for about {at.env_steps:,}, and a checkpoint cannot be cut; "
            "leave out the others, or compare side by side"
        )
    first_seed = runs[0].config.evaluation.seed
    scripts = _scripts(contestants, role_agents, sources.scripts)
    baselines: tuple[Baseline, ...] = ()
    head_to_head: HeadToHead | None = None
    try:
        with Arena(runs[0].config.simulation, role_agents, first_seed) as arena:
            seeds = episode_seeds(first_seed, num_episodes)
            baselines = _play_baselines(arena, subjects, role_agents, scripts, seeds)
            if should_meet:
                head_to_head, more = play_head_to_head(
                    arena,
                    contestants,
                    role_agents,
                    scripts,
                    num_episodes=num_episodes,
                    first_seed=first_seed,
                    should_explore=meeting_rule,
                    interchangeable=interchangeable,
                    on_match=on_match,
                )
                notes += more
    except CannotCompare as error:
        if should_meet:
            raise
        notes.append(f"no baseline was played: {error}")
    scores = score_runs(contestants, subjects, at, {})
    best = _best(standings_of(scores))
    random = {k: e.mean for b in baselines[:1] for k, e in b.returns.items()}
    limits = {**default_thresholds(subjects, random, best), **(thresholds or {})}
    scores = score_runs(contestants, subjects, at, limits)
    compared = tuple(role_results(contestants, subjects, scores))
    notes += _notes(contestants, at, compared, subjects)
    return Comparison(
        env=runs[0].config.simulation.env,
        kwargs=dict(runs[0].config.simulation.kwargs),
        contestants=contestants,
        roles=role_agents,
        subjects=subjects,
        budget=at,
        should_explore=bool(rule),
        first_seed=first_seed,
        baselines=baselines,
        thresholds=limits,
        given_thresholds=frozenset(thresholds or {}),
        standings=tuple(standings_of(scores)),
        roles_compared=compared,
        head_to_head=head_to_head,
        notes=tuple(notes),
    )


def default_folder(paths: Sequence[Path]) -> Path:
    """Returns where a report goes if nobody says: in the sweep, or beside the first run."""
    first = paths[0]
    is_sweep = (first / TRIALS_FILE).is_file()
    return first / "comparison" if is_sweep else first.resolve().parent / "comparison"


def _check_thresholds(thresholds: Mapping[str, float], subjects: Sequence[Subject]) -> None:
    known = [subject.key for subject in subjects]
    for key in thresholds:
        if key not in known:
            hint = did_you_mean(key, known) or f"; there are {listed(known)}"
            raise CannotCompare(f"a threshold is given for {key!r}, whom nobody measures{hint}")


def _best(standings: Sequence[Standing]) -> dict[str, float]:
    """Returns the highest interquartile mean of each subject."""
    best: dict[str, float] = {}
    for standing in standings:
        if math.isfinite(standing.score.mean):
            best[standing.subject] = max(standing.score.mean, best.get(standing.subject, -math.inf))
    return best


def _scripts(
    contestants: Sequence[Contestant],
    roles: Mapping[str, tuple[str, ...]],
    of_sweep: Mapping[str, Sequence[ServerConfig]],
) -> dict[str, list[Player]]:
    """Returns the scripted policies that a run or the sweep has for a role."""
    found: dict[str, dict[str, Player]] = {}
    for contestant in contestants:
        for role, agents in roles.items():
            _, server = server_of_role(contestant.runs[0], agents)
            if server.algorithm.upper() == "SCRIPTED":
                label = contestant.played[role]
                found.setdefault(role, {}).setdefault(label, Player(label, role, server))
    for role, servers in of_sweep.items():
        for server in servers:
            player = Player(server.label, role, server)
            found.setdefault(role, {}).setdefault(server.label, player)
    return {role: list(players.values()) for role, players in found.items()}


def _play_baselines(
    arena: Arena,
    subjects: Sequence[Subject],
    roles: Mapping[str, tuple[str, ...]],
    scripts: Mapping[str, Sequence[Player]],
    seeds: Sequence[int],
) -> tuple[Baseline, ...]:
    """Plays random agents alone, then each scripted policy among random ones."""
    random = {role: random_player(role, agents) for role, agents in roles.items()}
    played = [("random", arena.play_at_random(seeds))]
    by_label: dict[str, dict[str, Player]] = {}
    for role, players in scripts.items():
        for player in players:
            by_label.setdefault(player.label, {})[role] = player
    for theirs in by_label.values():
        seating = {**random, **theirs}
        name = " | ".join(f"{player.label} {role}" for role, player in seating.items())
        played.append((name, arena.play(seating, seeds)))
    baselines = []
    for name, by_agent in played:
        returns = {}
        for subject in subjects:
            values = subject.returns(by_agent)
            values = values[np.isfinite(values)]
            if len(values):
                returns[subject.key] = mean_interval([values])
        baselines.append(Baseline(name, returns, len(seeds)))
    return tuple(baselines)


def _budget_notes(runs: Sequence[ComparedRun], budget: Budget) -> list[str]:
    notes = []
    if budget.is_cut:
        notes.append(
            f"cut to a common budget: runs were evaluated after up to {budget.longest:,} env "
            f"steps, and are compared after {budget.place:,}, give or take "
            f"{TOLERANCE:.0%}; what came later is left out"
        )
    if budget.env_steps == 0 and any(s.learns for r in runs for s in r.recorded.servers.values()):
        notes.append("the evaluations compared are those before training: untrained policies")
    return notes


def _notes(
    contestants: Sequence[Contestant],
    budget: Budget,
    compared: Sequence[RoleResult],
    subjects: Sequence[Subject],
) -> list[str]:
    notes = []
    learning = [contestant for contestant in contestants if contestant.learns]
    seeds = {contestant.seeds for contestant in learning}
    if len(seeds) > 1:
        told = "; ".join(f"{c.name}: {listed(map(str, c.seeds), 12)}" for c in learning)
        notes.append(f"contestants have different seeds, and only equal ones are paired ({told})")
    fewest = min((len(contestant.seeds) for contestant in learning), default=0)
    if learning and fewest == 1:
        notes.append(
            "a contestant has one seed: nothing is known of how its runs differ, and no interval "
            "over seeds exists"
        )
    elif learning and fewest < _FEW_SEEDS:
        notes.append(
            f"with {fewest} seeds an interquartile mean is close to the mean, and its 95 % "
            "percentile interval covers about "
            f"{_COVERAGE[fewest]} % (measured on normal scores); the paired differences are "
            "widened and keep their 95 %"
        )
    several = [subject for subject in subjects if subject.kind == "role"]
    if len(several) > 1:
        missing = [
            subject.name
            for subject in several
            if subject.name not in {result.subject.name for result in compared}
            and len({contestant.played[subject.name] for contestant in contestants}) > 1
        ]
        if missing:
            notes.append(
                f"in role {listed(missing)} no labels met the same others, so that they cannot be "
                "told from those; run the missing assignments"
            )
    for result in compared:
        labels = [standing.label for standing in result.standings]
        unknown = [
            f"{pairing.first} and {pairing.second}"
            for pairing in result.pairings
            if labels.index(pairing.first) < labels.index(pairing.second)
            and pairing.num_pairs > 1
            and pairing.difference is not None
            and math.isnan(pairing.difference.low)
        ]
        if unknown:
            notes.append(
                f"in role {result.subject.name} the difference of {'; '.join(unknown)} has no "
                "interval: among some others it is of one seed alone, and nothing is known of how "
                "it varies there"
            )
    if budget.num_episodes < _FEW_EPISODES:
        notes.append(f"each evaluation has only {budget.num_episodes} episodes")
    return notes
