"""Who has learned: each role of each contestant against random agents in its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muxrl.orchestrator.comparisons.findings.contestants import Contestant, Subject
from muxrl.orchestrator.comparisons.findings.scores import Standing
from muxrl.orchestrator.reports.statistics import UNKNOWN, Estimate, mean_interval


@dataclass(frozen=True)
class Learner:
    """One role of one contestant, that a server of its own learned to play.

    Attributes:
        contestant: its name.
        role: its name.
        label: what played it.
        others: who played the other roles; "" if there are none.
        advantage: mean over runs of the return less that of random agents in its place, among the
            same others; the interval is widened for small samples. NaN if that was not measured.
        num_runs: that were measured so, maybe 0.
        num_below: of these, runs that end below random.
    """

    contestant: str
    role: str
    label: str
    others: str
    advantage: Estimate
    num_runs: int
    num_below: int

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval is above 0; never with one run."""
        return self.advantage.low > 0

    @property
    def is_below(self) -> bool:
        """Whether its mean is below random agents in its place."""
        return self.advantage.mean < 0


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
        if not all(run.recorded.servers[run.server_of[agent]].learns for run in contestant.runs):
            continue
        advantages = [
            run.score - run.random_in_place
            for run in standing.runs
            if run.random_in_place is not None and math.isfinite(run.score)
        ]
        learners.append(
            Learner(
                contestant=contestant.name,
                role=role,
                label=contestant.played[role],
                others=contestant.others(role),
                advantage=mean_interval([advantages]) if advantages else UNKNOWN,
                num_runs=len(advantages),
                num_below=sum(advantage < 0 for advantage in advantages),
            )
        )
    return learners
