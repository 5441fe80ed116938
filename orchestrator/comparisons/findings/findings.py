"""Holds the results of a comparison, its main results in sentences, and notes on their limits.

A sentence claims a difference only if the interval over seeds does not contain 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.comparisons.findings.compared_runs import (
    Budget,
    compared_after,
    point_at,
)
from muxrl.orchestrator.comparisons.findings.contestants import Contestant, Roles
from muxrl.orchestrator.comparisons.findings.frames import Frames, TableName
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.learners import BELOW, LEARNED
from muxrl.orchestrator.comparisons.findings.scores import Measure, once
from muxrl.orchestrator.config import SimulationConfig
from muxrl.orchestrator.measure.judged import NO_UPDATE, PLAYS_ITSELF, SIDE_BY_SIDE
from muxrl.orchestrator.measure.number_text import interval
from muxrl.orchestrator.measure.run_notes import extra_steps_notes, pooled_note
from muxrl.orchestrator.measure.statistics import Unit
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.protocol.suggestions import listed

if TYPE_CHECKING:
    from pandas import DataFrame

_FEW_EPISODES = 20
_MAX_PAIRS = 6  # pairs of four labels; with more labels, each is compared with the best only
_MAX_LISTED = 6


@dataclass(frozen=True)
class Findings:
    """The results of comparing runs of one simulation.

    Attributes:
        contestants: the contestants, each with its runs.
        roles: role to its agents.
        subjects: the subjects whose returns were measured.
        budget: after how much training runs are compared.
        should_explore: whether stochastic policies were sampled in the runs' evaluations.
        first_seed: seed of the first episode of the baselines and of the head to head.
        given_thresholds: keys of the thresholds that the user chose.
        thresholds: by subject's key: the threshold; results say when it was first reached.
        measures: by subject's key: whether its threshold and areas are of returns or advantages.
        frames: all numbers, see `muxrl.orchestrator.comparisons.findings.frames`.
        head_to_head: the head to head; None if it was not asked for.
        notes: what a reader must know before trusting the numbers.
    """

    contestants: tuple[Contestant, ...]
    roles: Roles
    subjects: tuple[Subject, ...]
    budget: Budget
    should_explore: bool
    first_seed: int
    thresholds: Mapping[str, float]
    given_thresholds: frozenset[str]
    measures: Mapping[str, Measure]
    frames: Frames
    head_to_head: HeadToHead | None
    notes: tuple[str, ...]

    @property
    def simulation(self) -> SimulationConfig:
        """The simulation's config, from the first run."""
        return self.contestants[0].runs[0].config.simulation

    @property
    def runs(self) -> list[RecordedRun]:
        """The runs of all contestants."""
        return [run for contestant in self.contestants for run in contestant.runs]

    @property
    def compared_after(self) -> str:
        """After how many env steps runs are compared, in words; "" if nothing learns."""
        return compared_after(self.runs, self.budget)

    @property
    def headline(self) -> tuple[str, ...]:
        """The main results, in sentences."""
        return tuple(headline(self.frames, self.head_to_head))

    @property
    def main_subjects(self) -> tuple[Subject, ...]:
        """The roles, and all agents together if they cooperate: the first tables show these."""
        return tuple(s for s in self.subjects if s.kind in ("role", "total"))

    @property
    def episodes_in_words(self) -> str:
        """A text on the episodes of evaluations, and which runs played the same ones."""
        first_seeds = dict.fromkeys(point_at(run, self.budget).first_seed for run in self.runs)
        if None in first_seeds:
            return "played by an external simulation"
        same = "for all runs" if len(first_seeds) == 1 else "for runs with the same seed"
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
        """Returns the subject with a key."""
        return next(subject for subject in self.subjects if subject.key == key)

    def of_role(self, table: TableName, role: str) -> DataFrame:
        """Returns the rows of a frame that belong to a role."""
        return self.frames[table][self.frames[table].role == role]


def budget_notes(runs: Sequence[RecordedRun], budget: Budget) -> Iterator[str]:
    """Yields notes on training beyond the budget, and on policies that are compared untrained."""
    if budget.is_cut:
        yield (
            f"cut to a common budget: runs were evaluated after up to {budget.longest:,} env "
            f"steps, and are compared after {compared_after(runs, budget)}; later evaluations are "
            "left out"
        )
    if budget.env_steps == 0 and any(run.learns for run in runs):
        yield "the compared evaluations were played before training: they show untrained policies"
    yield from extra_steps_notes(runs, {run: point_at(run, budget) for run in runs})


def result_notes(
    contestants: Sequence[Contestant], budget: Budget, subjects: Sequence[Subject], frames: Frames
) -> Iterator[str]:
    """Yields notes on too few seeds or episodes, and on what the runs cannot show."""
    learning = [contestant for contestant in contestants if contestant.learns]
    if len({contestant.seeds for contestant in learning}) > 1:
        written = "; ".join(f"{c.name}: {listed(map(str, c.seeds), 12)}" for c in learning)
        yield (
            "contestants have different seeds, and only runs with equal seeds are paired "
            f"({written})"
        )
    for contestant in contestants:
        if note := pooled_note(contestant.runs):
            yield f"{contestant.name}: {note}"
    begun_from_own = [c.name for c in learning if len({_sources(run) for run in c.runs}) > 1]
    if begun_from_own:
        yield (
            "the runs of a contestant began with different checkpoints, one for each seed "
            f"({listed(begun_from_own)})"
        )
    if any(len(contestant.seeds) == 1 for contestant in learning):
        yield (
            "a contestant has one seed: nothing is known of how its returns vary over seeds, so "
            "it has no interval"
        )
    roles = [subject.name for subject in subjects if subject.kind == "role"]
    missing = [
        role
        for role in roles
        if role not in set(frames["roles"].role)
        and len({contestant.played[role] for contestant in contestants}) > 1
    ]
    if missing and len(roles) > 1:
        yield (
            f"no two labels of {listed(missing)} met the same others, so a difference in what they "
            "return may be due to the others; run the missing assignments"
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
            yield (
                f"in role {role} the difference between {'; '.join(unknown)} has no interval: "
                "among some others there is only one common seed, or the differences of a few "
                "seeds are all equal, so nothing is known of how the difference varies"
            )
    if budget.num_episodes < _FEW_EPISODES:
        yield f"each evaluation has only {budget.num_episodes} episodes"
    met = Counter(run.subject for run in frames["runs"].itertuples() if run.met_untrained)
    for subject, num in sorted(met.items()):
        yield (
            f"the threshold of {subject.replace(':', ' ')} was met before training, in {num} "
            f"run{'s'[: num != 1]}: this says nothing of how fast a run learned, and counts as "
            "not reached"
        )


def _sources(run: RecordedRun) -> tuple[str, ...]:
    return tuple(server.initialize_from for _, server in sorted(run.config.servers.items()))


def headline(frames: Frames, played: HeadToHead | None) -> list[str]:
    """Returns the main results as sentences, most important first."""
    roles, pairings = frames["roles"], frames["pairings"]
    return [
        *(
            _role_sentence(role, labels, pairings[pairings.role == role].to_dict("records"))
            for role, labels in roles.groupby("role", sort=False)
        ),
        *_learning_sentences(frames["learners"]),
        *_meeting_sentences(played),
    ]


def _role_sentence(role: str, labels: DataFrame, pairings: list[dict[str, Any]]) -> str:
    among = ", among the same others" if any(labels.among.iloc[0]) else ""
    clear, unclear = [], []
    for pairing in _shown_pairings(labels, pairings):
        first, second, difference = (pairing[name] for name in ("first", "second", "difference"))
        names = f"{first} and {second}"
        if difference is None:
            unclear.append(f"{names} have no seed in common")
        elif math.isnan(difference.low):
            written = interval(difference, Unit.SEEDS)
            unclear.append(f"{names} differ by {written}, with no interval")
        elif difference.low > 0:
            clear.append(f"{first} is better than {second} by {interval(difference, Unit.SEEDS)}")
        else:
            written = interval(difference, Unit.SEEDS, "+")
            unclear.append(f"{names} cannot be told apart ({written})")
    return f"As {role}{among}: {'; '.join([*clear, *unclear])}."


def _shown_pairings(labels: DataFrame, pairings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields each pair of labels once, the better first; of many labels, pairs with the best."""
    by_score = sorted(zip(labels.label, labels.iqm, strict=True), key=lambda one: -one[1].mean)
    rank = {label: place for place, (label, _) in enumerate(by_score)}
    is_few = len(pairings) <= 2 * _MAX_PAIRS
    for pairing in sorted(pairings, key=lambda p: (rank[p["first"]], rank[p["second"]])):
        places = rank[pairing["first"]], rank[pairing["second"]]
        difference = pairing["difference"]
        # Ordered by the difference, whose sign may not be that of the interquartile means.
        ahead = 0.0 if difference is None else difference.mean
        is_first = ahead > 0 or (ahead == 0 and places[0] < places[1])
        if is_first and (is_few or 0 in places):
            yield pairing


_NOT_JUDGED = {
    NO_UPDATE: "made no update, so there is nothing to judge",
    SIDE_BY_SIDE: "plays against itself; the report of a run judges each of its sides alone",
    PLAYS_ITSELF: "plays against itself, and none of its sides was judged alone",
}


def _learning_sentences(every: DataFrame) -> Iterator[str]:
    is_judged = ~every.verdict.isin([*_NOT_JUDGED])
    every, others = every[is_judged], every[~is_judged]
    learners = every[every.num_runs > 0]
    if len(learners):
        yield from _measured_sentences(learners)
    for verdict, claim in _NOT_JUDGED.items():
        those = [_who(one) for one in others.itertuples() if one.verdict == verdict]
        if those:
            yield f"Not judged: {listed(those, _MAX_LISTED)}, which {claim}."
    unmeasured = list(dict.fromkeys(every[every.num_runs == 0].role))
    if unmeasured:
        yield (
            f"Whether {listed(unmeasured, _MAX_LISTED)} learned is not known"
            f"{' in all runs' if set(unmeasured) & {*learners.role} else ''}: random "
            "agents in the same place were not measured."
        )


def _measured_sentences(learners: DataFrame) -> Iterator[str]:
    written = [_sentence_of(learner) for learner in learners.itertuples()]
    shown, below = (
        [text for text, is_one in zip(written, learners.verdict == verdict, strict=True) if is_one]
        for verdict in (LEARNED, BELOW)
    )
    seeds = " or ".join(map(str, sorted({*learners.num_runs})))
    seeds = f"With {seeds} {'seed' if seeds == '1' else 'seeds'}"
    place = "random agents in the same place"
    if len(learners) == 1:
        verb = "is shown" if shown else "is not shown"
        yield f"{seeds}, {written[0]} {verb} to have learned, compared with {place}."
        return
    many = f"{len(learners)} learners (a role in an assignment)"
    if not shown:
        yield (
            f"{seeds}, no learner is shown to have learned: of {many}, none has an advantage over "
            f"{place} whose interval is above 0."
        )
    elif len(shown) == len(learners):
        yield f"{seeds}, all {many} are shown to have learned, compared with {place}."
    else:
        yield (
            f"{seeds}, {len(shown)} of {many} {'is' if len(shown) == 1 else 'are'} shown to have "
            f"learned, compared with {place}: {listed(shown, _MAX_LISTED)}."
        )
    if below:
        verb = "ends" if len(below) == 1 else "end"
        yield (
            f"{len(below)} of {len(learners)} {verb} below {place}: {listed(below, _MAX_LISTED)}."
        )


def _sentence_of(learner: Any) -> str:
    return f"{_who(learner)} ({interval(learner.advantage, Unit.SEEDS, '+')})"


def _who(learner: Any) -> str:
    with_others = f" beside {learner.others}" if learner.others else ""
    return f"{learner.label} as {learner.role}{with_others}"


def _meeting_sentences(played: HeadToHead | None) -> Iterator[str]:
    if played is None:
        return
    for table in played.by_label:
        known = {p: merit for p, merit in table.merits.items() if math.isfinite(merit.mean)}
        if known:
            best = max(known, key=lambda player: known[player].mean)
            text = interval(known[best], Unit.PAIRS, "+")
            yield f"Head to head as {table.role}, " + (
                f"{best} has the highest merit, {text}."
                if known[best].low > 0
                else f"no player's merit is shown to be above 0; the highest is {best}'s, {text}."
            )
        for label, curve in played.rating_curves(table).items():
            (first, begin), (last, end) = (
                (env_steps, interval(rating, played.rating_unit, digits=0))
                for env_steps, rating in (curve[0], curve[-1])
            )
            yield (
                f"As {table.role}, {label} is rated {begin} after {first:,} env steps, {end} after "
                f"{last:,}; random actions are 0."
            )
