"""Who plays a role: its labels against each other, the other roles played by the same others; and
who has learned to play it, against random agents in its place and the policies that it began with.

Runs with the same others are one stratum, as a task is in a benchmark of many: runs are drawn
again inside it, and differences are taken inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.scores import common_variance, known_of
from muxrl.orchestrator.measure.against_random import Verdict, against_random
from muxrl.orchestrator.measure.rliable import (
    interquartile_mean_interval,
    performance_profile,
    probability_of_improvement,
)
from muxrl.orchestrator.measure.statistics import (
    UNKNOWN,
    Floats,
    Unit,
    mean_interval,
    variance_of,
)
from muxrl.orchestrator.measure.subjects import Subject

if TYPE_CHECKING:
    from pandas import DataFrame

_NUM_THRESHOLDS = 60  # of a drawn profile
Rows = list[dict[str, Any]]
LEARNED, BELOW = "learned", "below random"
"""Verdicts: better than random, and than untrained where that is known; worse than random. Of one
run there is neither."""
_VERDICTS: Mapping[Verdict | None, str] = {
    Verdict.BETTER: LEARNED,
    Verdict.BETTER_THAN_BOTH: LEARNED,
    Verdict.NOT_THAN_UNTRAINED: "not shown: untrained",
    Verdict.WORSE: BELOW,
    Verdict.UNCLEAR: "not shown",
}


def compare_roles(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], runs: DataFrame
) -> tuple[Rows, Rows]:
    """Compares labels role by role, each among the same others.

    Roles that only one label played, or whose labels have no others in common, are left out.

    Returns:
        The rows of the frame "roles", with the part of a label's runs above each return (`profile`)
        and the common others (`among`), and those of "pairings": of every ordered pair of labels.
        `random_in_place` is the mean over the same runs with random actions in the role, None:
        unknown; `difference` is paired by seed and by others: None without a common seed, and
        without an interval where they share only one seed among some others.
    """
    by_name = {contestant.name: contestant for contestant in contestants}
    roles: Rows = []
    pairings: Rows = []
    for subject in (s for s in subjects if s.kind == "role"):
        known = known_of(runs[runs.subject == subject.key])
        playing = [by_name[name] for name in known.contestant]
        known = known.assign(
            label=[contestant.played[subject.name] for contestant in playing],
            among=[contestant.others(subject.name) for contestant in playing],
        )
        by_label = {
            label: dict(tuple(ours.groupby("among", sort=False)))
            for label, ours in known.groupby("label", sort=False)
        }
        common = [
            among
            for among in dict.fromkeys(among for table in by_label.values() for among in table)
            if all(among in table for table in by_label.values())
        ]
        if len(by_label) > 1 and common:
            tables = {
                label: [table[among] for among in common] for label, table in by_label.items()
            }
            roles += _standings(subject.name, tables, common)
            pairings += _pairings(subject.name, tables)
    return roles, pairings


def once(pairings: DataFrame) -> DataFrame:
    """Returns each two labels of one role once, in their order."""
    place = {label: place for place, label in enumerate(dict.fromkeys(pairings["first"]))}
    return pairings[pairings["first"].map(place) < pairings["second"].map(place)]


_Tables = dict[str, list["DataFrame"]]
"""By label its runs, a frame for each set of others."""


def _standings(role: str, tables: _Tables, among: Sequence[str]) -> Rows:
    every = np.concatenate([score for ours in tables.values() for score in _scores(ours)])
    margin = 0.02 * (every.max() - every.min()) or 1.0
    places = np.linspace(every.min() - margin, every.max() + margin, _NUM_THRESHOLDS)
    rows = []
    for label, ours in tables.items():
        strata = _scores(ours)
        shared = common_variance([played for runs in ours for played in runs.played])
        in_place = [x for runs in ours for x in runs.random_in_place if x is not None]
        rows.append(
            {
                "role": role,
                "label": label,
                "num_runs": sum(map(len, ours)),
                "num_contexts": len(ours),
                "iqm": interquartile_mean_interval(strata, shared),
                "random_in_place": float(np.mean(in_place)) if in_place else None,
                "profile": performance_profile(strata, places, variance_of(strata).share(shared)),
                "among": tuple(among),
            }
        )
    return rows


def _pairings(role: str, tables: _Tables) -> Rows:
    rows = []
    for first, second in permutations(tables, 2):
        pairs = [
            ours.merge(theirs, on="seed")
            for ours, theirs in zip(tables[first], tables[second], strict=True)
        ]
        shared = common_variance(
            *([one for those in pairs for one in those[f"played_{x}"]] for x in "xy")
        )
        differences = [list(those["return_x"] - those["return_y"]) for those in pairs if len(those)]
        ours, theirs = _scores(tables[first]), _scores(tables[second])
        share = (variance_of(ours) + variance_of(theirs)).share(shared)
        rows.append(
            {
                "role": role,
                "first": first,
                "second": second,
                "improvement": probability_of_improvement(ours, theirs, share),
                "difference": mean_interval(differences, shared) if differences else None,
                "num_pairs": sum(map(len, pairs)),
            }
        )
    return rows


def _scores(tables: Sequence[DataFrame]) -> list[Floats]:
    return [np.array(runs["return"], np.float64) for runs in tables]


def find_learners(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], runs: DataFrame
) -> Iterator[dict[str, Any]]:
    """Yields each role of each contestant that a server of its own learned to play.

    `advantage` is the mean over runs of the return less that of random agents in its place, among
    the same others, with its interval over seeds, NaN if that was not measured; `num_runs` that
    were measured so, maybe 0; `num_below` of them end below random; `over_untrained` is over the
    policies that the runs began with.
    """
    for contestant in contestants:
        for role in (subject for subject in subjects if subject.kind == "role"):
            if not all(r.servers[r.server_of[role.agents[0]]].learns for r in contestant.runs):
                continue
            ours = runs[(runs.contestant == contestant.name) & (runs.subject == role.key)]
            measured = [one for one in known_of(ours).played if one.random is not None]
            found = against_random(measured, Unit.SEEDS) if measured else None
            yield {
                "role": role.name,
                "label": contestant.played[role.name],
                "others": contestant.others(role.name),
                "contestant": contestant.name,
                "num_runs": len(measured),
                "num_below": found.num_seeds_below if found else 0,
                "advantage": (found and found.advantage) or UNKNOWN,
                # Of some runs only it would not be of the same ones.
                "over_untrained": (found and found.over_untrained) or UNKNOWN,
                "verdict": (found and _VERDICTS.get(found.verdict)) or "not measured",
            }
