"""Who has learned: each role of each contestant against random agents in its place.

And, where that was measured, against the policies that it began with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.scores import known_of
from muxrl.orchestrator.measure.against_random import against_random
from muxrl.orchestrator.measure.statistics import UNKNOWN, Estimate, Unit
from muxrl.orchestrator.measure.subjects import Subject

if TYPE_CHECKING:
    from pandas import DataFrame

LEARNED, BELOW = "learned", "below random"
"""Verdicts: better than random, and than untrained where that is known; worse than random. Of one
run there is neither."""


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
            advantage = (found and found.advantage) or UNKNOWN
            # Of some runs only it would not be of the same ones.
            over_untrained = (found and found.over_untrained) or UNKNOWN
            yield {
                "role": role.name,
                "label": contestant.played[role.name],
                "others": contestant.others(role.name),
                "contestant": contestant.name,
                "num_runs": len(measured),
                "num_below": found.num_seeds_below if found else 0,
                "advantage": advantage,
                "over_untrained": over_untrained,
                "verdict": _verdict(advantage, over_untrained) if measured else "not measured",
            }


def _verdict(advantage: Estimate, over_untrained: Estimate) -> str:
    if advantage.low > 0:
        is_known = math.isfinite(over_untrained.mean)
        is_better = not is_known or over_untrained.low > 0
        return LEARNED if is_better else "not shown: untrained"
    return BELOW if advantage.high < 0 else "not shown"
