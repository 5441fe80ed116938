"""Finds out who has learned: compares each trained role with random agents in its place."""

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
"""Verdicts: better than random (and than untrained, if that was measured); worse than random. One
run can give neither."""
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
    """Yields a row for each role of each contestant that learned.

    `advantage` is the mean over runs of the return less that of random agents in the same place,
    among the same others, with its interval over seeds; NaN if that was not measured. `num_runs` is
    how many runs measured it (maybe 0), and `num_below` how many of these end below random.
    `over_untrained` is the advantage over the policies that the runs began with. `verdict` may also
    be a text that a report has in place of a verdict.
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
                # Unknown unless all these runs have it: else the two would be of different runs.
                "over_untrained": (found and found.over_untrained) or UNKNOWN,
                "verdict": _instead(playing, role)
                or (found and _VERDICTS.get(found.verdict))
                or "not measured",
            }


def _instead(playing: Sequence[tuple[RecordedRun, str]], role: Subject) -> str:
    """Returns the text that a report has for a role in place of a verdict; "": it has a verdict."""
    if not any(run.has_updates(server_id) for run, server_id in playing):
        return NO_UPDATE
    if any(
        set(run.servers[server_id].agents) == set(role.agents) and plays_itself(run, server_id)
        for run, server_id in playing
    ):
        has_sides = all(any(s in p.sides for p in run.points) for run, s in playing)
        return SIDE_BY_SIDE if has_sides else PLAYS_ITSELF
    return ""
