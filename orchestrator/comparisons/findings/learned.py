"""Who has learned: each role of each contestant against random agents in its place.

And, where that was measured, against the policies that it began with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.scores import Standing
from muxrl.orchestrator.measure.against_random import against_random
from muxrl.orchestrator.measure.statistics import UNKNOWN, Estimate, Unit
from muxrl.orchestrator.measure.subjects import Subject


@dataclass(frozen=True)
class Learner:
    """One role of one contestant, that a server of its own learned to play.

    Attributes:
        contestant: its name.
        role: its name.
        label: what played it.
        others: who played the other roles; "" if there are none.
        advantage: mean over runs of the return less that of random agents in its place, among the
            same others, with its interval over seeds. NaN if that was not measured.
        num_runs: that were measured so, maybe 0.
        num_below: of these, runs that end below random.
        over_untrained: as `advantage`, over the policies that the runs began with.
    """

    contestant: str
    role: str
    label: str
    others: str
    advantage: Estimate
    num_runs: int
    num_below: int
    over_untrained: Estimate = UNKNOWN

    @property
    def is_over_random(self) -> bool:
        """Whether the whole interval is above 0; never with one run."""
        return self.advantage.low > 0

    @property
    def is_shown(self) -> bool:
        """Whether it is better than random, and than untrained where that is known."""
        is_known = math.isfinite(self.over_untrained.mean)
        return self.is_over_random and (not is_known or self.over_untrained.low > 0)

    @property
    def is_below(self) -> bool:
        """Whether the whole interval is below random agents in its place; never with one run."""
        return self.advantage.high < 0

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.num_runs:
            return "not measured"
        if self.is_shown:
            return "learned"
        if self.is_over_random:
            return "not shown: untrained"
        return "below random" if self.is_below else "not shown"


def find_learners(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], standings: Sequence[Standing]
) -> list[Learner]:
    """Returns who learned a role, measured against random agents or not."""
    by_name = {contestant.name: contestant for contestant in contestants}
    roles = {subject.key: subject for subject in subjects if subject.kind == "role"}
    learners = []
    for standing in standings:
        if standing.subject not in roles:
            continue
        role = roles[standing.subject].name
        contestant = by_name[standing.contestant]
        agent = roles[standing.subject].agents[0]
        if not all(run.servers[run.server_of[agent]].learns for run in contestant.runs):
            continue
        measured = [run.played for run in standing.runs if math.isfinite(run.score)]
        measured = [one for one in measured if one.random is not None]
        found = against_random(measured, Unit.SEEDS) if measured else None
        learners.append(
            Learner(
                contestant=contestant.name,
                role=role,
                label=contestant.played[role],
                others=contestant.others(role),
                advantage=(found and found.advantage) or UNKNOWN,
                num_runs=len(measured),
                num_below=found.num_seeds_below if found else 0,
                # Of some runs only it would not be of the same ones.
                over_untrained=(found and found.over_untrained) or UNKNOWN,
            )
        )
    return learners
