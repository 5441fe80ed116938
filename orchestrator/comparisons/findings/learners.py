"""Who has learned: each role that a server of its own played, against random agents there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.scores import known_of
from muxrl.orchestrator.measure.against_random import Verdict, against_random
from muxrl.orchestrator.measure.judged import (
    NO_UPDATE,
    PLAYS_ITSELF,
    SIDE_BY_SIDE,
    plays_itself,
)
from muxrl.orchestrator.measure.statistics import UNKNOWN, Unit
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.recorded_run import RecordedRun

if TYPE_CHECKING:
    from pandas import DataFrame

LEARNED, BELOW = "learned", "below random"
"""Verdicts: better than random, and than untrained where that is known; worse than random. Of one
run there is neither."""
_VERDICTS: Mapping[Verdict | None, str] = {
    Verdict.BETTER: LEARNED,
    Verdict.BETTER_THAN_BOTH: LEARNED,
    Verdict.NOT_THAN_UNTRAINED: "not shown: untrained",
    Verdict.NOT_ALL_UPDATED: "not shown: some made no update",
    Verdict.WORSE: BELOW,
    Verdict.UNCLEAR: "not shown",
}


def find_learners(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], runs: DataFrame
) -> Iterator[dict[str, Any]]:
    """Yields each role of each contestant that a server of its own learned to play.

    `advantage` is the mean over runs of the return less that of random agents in its place, among
    the same others, with its interval over seeds, NaN if that was not measured; `num_runs` that
    were measured so, maybe 0; `num_below` of them end below random; `over_untrained` is over the
    policies that the runs began with. `verdict` may be one that a report has in a verdict's place.
    """
    for contestant in contestants:
        for role in (subject for subject in subjects if subject.kind == "role"):
            playing = [(run, run.server_of[role.agents[0]]) for run in contestant.runs]
            if not all(run.servers[server_id].learns for run, server_id in playing):
                continue
            ours = runs[(runs.contestant == contestant.name) & (runs.subject == role.key)]
            known = known_of(ours)
            known = known.loc[[one.random is not None for one in known.played]]
            has_none = {run.path for run, server_id in playing if not run.has_updates(server_id)}
            without, measured = known.run.isin(has_none).sum(), list(known.played)
            found = None
            if measured:
                found = against_random(measured, Unit.SEEDS, num_without_update=int(without))
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
                "verdict": _instead(playing, role)
                or (found and _VERDICTS.get(found.verdict))
                or "not measured",
            }


def _instead(playing: Sequence[tuple[RecordedRun, str]], role: Subject) -> str:
    """Returns what a report says of the servers of a role where it judges no learning; "": it
    does."""
    if not any(run.has_updates(server_id) for run, server_id in playing):
        return NO_UPDATE
    if any(
        set(run.servers[server_id].agents) == set(role.agents) and plays_itself(run, server_id)
        for run, server_id in playing
    ):
        has_sides = all(any(s in p.sides for p in run.points) for run, s in playing)
        return SIDE_BY_SIDE if has_sides else PLAYS_ITSELF
    return ""
