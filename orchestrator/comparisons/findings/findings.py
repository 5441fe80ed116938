"""All that a comparison found, as one value, and what its reader must know before trusting it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.comparisons.findings.compared_runs import Budget, point_at
from muxrl.orchestrator.comparisons.findings.contestants import Contestant, Roles
from muxrl.orchestrator.comparisons.findings.frames import Frames, TableName
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.headline import headline
from muxrl.orchestrator.comparisons.findings.role_by_role import once
from muxrl.orchestrator.comparisons.findings.scores import Measure
from muxrl.orchestrator.config import SimulationConfig
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.protocol.suggestions import listed

if TYPE_CHECKING:
    from pandas import DataFrame

_FEW_EPISODES = 20


@dataclass(frozen=True)
class Baseline:
    """Fixed policies alone, in all roles: what returns are without learning.

    Attributes:
        name: "random", or who plays what: ``flee prey | random predator``.
        returns: by subject's key, the mean over episodes, with its interval over episodes.
        num_episodes: that were played.
    """

    name: str
    returns: Mapping[str, Estimate]
    num_episodes: int

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields those of the frame "standings"."""
        for subject, mean in self.returns.items():
            about = {"contestant": f"baseline: {self.name}", "subject": subject, "num_runs": 0}
            yield {**about, "mean": mean, "is_baseline": True}


@dataclass(frozen=True)
class Findings:
    """What came of comparing runs of one simulation.

    Attributes:
        contestants: what was compared, each with its runs.
        roles: role to its agents.
        subjects: whose returns were measured.
        budget: at how much training.
        should_explore: whether stochastic policies were sampled in the runs' evaluations.
        first_seed: of the baselines' episodes, and of the head to head's.
        baselines: fixed policies, random ones first; () if none could be played.
        given_thresholds: keys of those that the user chose.
        thresholds: by subject's key, the return whose first reaching counts.
        measures: by subject's key, of what its thresholds and areas are.
        frames: all numbers, see `muxrl.orchestrator.comparisons.findings.frames`.
        head_to_head: None if it was not asked for.
        notes: what a reader must know before trusting the numbers.
    """

    contestants: tuple[Contestant, ...]
    roles: Roles
    subjects: tuple[Subject, ...]
    budget: Budget
    should_explore: bool
    first_seed: int
    baselines: tuple[Baseline, ...]
    thresholds: Mapping[str, float]
    given_thresholds: frozenset[str]
    measures: Mapping[str, Measure]
    frames: Frames
    head_to_head: HeadToHead | None
    notes: tuple[str, ...]

    @property
    def simulation(self) -> SimulationConfig:
        """Of all runs."""
        return self.contestants[0].runs[0].config.simulation

    @property
    def headline(self) -> tuple[str, ...]:
        """What it comes to, in sentences."""
        return tuple(headline(self.frames, self.head_to_head))

    @property
    def main_subjects(self) -> tuple[Subject, ...]:
        """The roles, and all agents together if they cooperate: what the first tables show."""
        return tuple(s for s in self.subjects if s.kind in ("role", "total"))

    @property
    def episodes_in_words(self) -> str:
        """Which runs were evaluated on the same episodes."""
        runs = [run for contestant in self.contestants for run in contestant.runs]
        first_seeds = dict.fromkeys(point_at(run, self.budget).first_seed for run in runs)
        if None in first_seeds:
            return "of an external simulation"
        same = "for all" if len(first_seeds) == 1 else "for runs of one seed"
        return (
            f"environment seeds from {listed([f'{n:,}' for n in first_seeds], 6)}, the same {same}"
        )

    @property
    def metrics(self) -> tuple[Subject, ...]:
        """The simulation's own metrics."""
        return tuple(s for s in self.subjects if s.kind == "metric")

    @property
    def other_subjects(self) -> tuple[Subject, ...]:
        """Teams and agents that are no roles."""
        return tuple(s for s in self.subjects if s.kind in ("team", "agent"))

    def subject(self, key: str) -> Subject:
        """Returns one by its key."""
        return next(subject for subject in self.subjects if subject.key == key)

    def of_role(self, table: TableName, role: str) -> DataFrame:
        """Returns the rows of a frame that are of one role."""
        return self.frames[table][self.frames[table].role == role]


def budget_notes(runs: Sequence[RecordedRun], budget: Budget) -> list[str]:
    """Says what training is left out, and whether the compared policies are untrained."""
    notes = []
    if budget.is_cut:
        notes.append(
            f"cut to a common budget: runs were evaluated after up to {budget.longest:,} env "
            f"steps, and are compared after {budget.place:,}; what came later is left out"
        )
    if budget.env_steps == 0 and any(run.learns for run in runs):
        notes.append("the evaluations compared are those before training: untrained policies")
    return notes


def result_notes(
    contestants: Sequence[Contestant], budget: Budget, subjects: Sequence[Subject], frames: Frames
) -> list[str]:
    """Says where seeds or episodes are too few, and what the runs cannot tell."""
    return [
        *_seed_notes([contestant for contestant in contestants if contestant.learns]),
        *_role_notes(contestants, subjects, frames),
        *_episode_notes(budget),
        *_reached_notes(frames["runs"]),
    ]


def _reached_notes(runs: DataFrame) -> list[str]:
    """Says where untrained policies met a threshold already, which nothing was learned for."""
    met = Counter(run.subject for run in runs.itertuples() if run.met_untrained)
    return [
        f"the threshold of {subject.replace(':', ' ')} was met before training, in {num} "
        f"run{'s'[: num != 1]}: it tells nothing of how fast they learned, and counts as not "
        "reached"
        for subject, num in sorted(met.items())
    ]


def _seed_notes(learning: Sequence[Contestant]) -> list[str]:
    notes = []
    seeds = {contestant.seeds for contestant in learning}
    if len(seeds) > 1:
        written = "; ".join(f"{c.name}: {listed(map(str, c.seeds), 12)}" for c in learning)
        notes.append(
            f"contestants have different seeds, and only equal ones are paired ({written})"
        )
    begun_from_own = [c.name for c in learning if len({_sources(run) for run in c.runs}) > 1]
    if begun_from_own:
        notes.append(f"each seed began with a checkpoint of its own ({listed(begun_from_own)})")
    fewest = min((len(contestant.seeds) for contestant in learning), default=0)
    if learning and fewest == 1:
        notes.append(
            "a contestant has one seed: nothing is known of how its runs differ, and no interval "
            "over seeds exists"
        )
    return notes


def _sources(run: RecordedRun) -> tuple[str, ...]:
    return tuple(server.initialize_from for _, server in sorted(run.config.servers.items()))


def _role_notes(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], frames: Frames
) -> list[str]:
    notes = []
    several = [subject for subject in subjects if subject.kind == "role"]
    if len(several) > 1:
        missing = [
            subject.name
            for subject in several
            if subject.name not in set(frames["roles"].role)
            and len({contestant.played[subject.name] for contestant in contestants}) > 1
        ]
        if missing:
            notes.append(
                f"no two labels of {listed(missing)} met the same others, so that what they return "
                "may be those others' doing; run the missing assignments"
            )
    for role, pairings in frames["pairings"].groupby("role", sort=False):
        unknown = [
            f"{pairing.first} and {pairing.second}"
            for pairing in once(pairings).itertuples()
            if pairing.num_pairs > 1
            and pairing.difference is not None
            and math.isnan(pairing.difference.low)
        ]
        if unknown:
            notes.append(
                f"in role {role} the difference of {'; '.join(unknown)} has no "
                "interval: among some others it is of one seed alone, and nothing is known of how "
                "it varies there"
            )
    return notes


def _episode_notes(budget: Budget) -> list[str]:
    if budget.num_episodes >= _FEW_EPISODES:
        return []
    return [f"each evaluation has only {budget.num_episodes} episodes"]
