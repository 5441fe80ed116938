"""A run's evaluations as one wide frame: a row for each episode, a column for each number.

Its index is ``(env_steps, replaced, episode)``: env steps of training before the evaluation, the
condition (a `Condition`'s key; "": all agents acted as learned), and the episode's index in the
evaluation. The same index is the same episode in every condition. Its columns are ``(metric,
agent)``: `RETURN` or the name of a metric, and the agent, or `COMMON` for a number of the whole
episode. Numbers are float64; a missing one is NaN. A `muxrl.orchestrator.measure.subjects.Subject`
selects what is measured. pandas, which Ray Tune brings, is imported when needed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.series import Floats

if TYPE_CHECKING:
    from pandas import DataFrame

RETURN = "return"
"""The name of the return among the metrics; no metric may have it."""
AS_LEARNED = ""
INDEX = ("env_steps", "replaced", "episode")
_UNRECORDED = 10_000
"""The first seed of evaluations whose rows lack it: at that time all runs used this one."""


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: the same weights in each condition that was measured."""

    env_steps: int
    """Env steps of training before the evaluation."""
    time_s: float = math.nan
    """Seconds of training before the evaluation; NaN if they were not recorded."""
    first_seed: int | None = None
    """The seed of the first episode's reset; None: an external simulation chose the episodes."""
    num_episodes: Mapping[str, int] = field(default_factory=dict)
    """By condition: how many episodes it has."""
    sides: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By server that was found to play against itself: side to agents."""
    logged_agents: frozenset[str] = frozenset()
    """Agents for which the simulation chose any action itself, in any condition."""
    env_steps_played: int = 0
    """Env steps that training had played by then, which may be more, since open episodes are played
    to their end; 0: not recorded."""

    @classmethod
    def of(
        cls, env_steps: int, rows: Mapping[str, EvaluationRow], first_seed: int | None
    ) -> EvaluationPoint:
        """Returns the evaluation that rows, by condition, are of.

        `first_seed` is used if the rows have none.
        """
        first = next(iter(rows.values()))
        sides: dict[str, dict[str, tuple[str, ...]]] = {}
        for condition in map(Condition.of_row, rows.values()):
            if condition.server_id is not None and condition.side:
                sides.setdefault(condition.server_id, {})[condition.side] = condition.agents
        return cls(
            env_steps,
            math.nan if first.time_s is None else first.time_s,
            first_seed if first.first_seed is None else first.first_seed,
            {who: _num_episodes(row) for who, row in rows.items()},
            sides,
            frozenset().union(*(row.logged_agents for row in rows.values())),
            (AS_LEARNED in rows and rows[AS_LEARNED].env_steps_played) or 0,
        )


class EvaluationSeries:
    """A run's evaluations, from their rows.

    A condition that is seen again begins the next evaluation. So the rows of one evaluation stay
    together even if training went on meanwhile and their env steps differ a little.

    Of two evaluations at the same env step (the last one during training and the final one) the
    later one counts, unless it lacks conditions of the earlier one because it was stopped. They are
    not merged: their episodes differ. Evaluations that chose actions by another rule (sampled or
    greedy) than the newest one are left out.

    Args:
        most: the number of env steps whose evaluations are kept, the newest ones; None: all.
        is_external: whether an external simulation played the episodes.
    """

    def __init__(self, most: int | None = None, *, is_external: bool = False) -> None:
        self._most = most
        self._first_seed = None if is_external else _UNRECORDED
        self.should_explore: bool | None = None
        """Whether policies sampled their actions; None: nothing was evaluated."""
        self._by_rule: dict[bool | None, list[dict[str, EvaluationRow]]] = {None: []}

    def add(self, row: EvaluationRow) -> None:
        """Adds a row to the evaluation that it belongs to."""
        self.should_explore = row.should_explore
        evaluations = self._by_rule.setdefault(row.should_explore, [{}])
        who = row.replaced or AS_LEARNED
        if who in evaluations[-1]:
            evaluations.append({})
        evaluations[-1][who] = row
        if self._most is not None:
            newest = list(dict.fromkeys(map(_env_steps, evaluations)))[-self._most :]
            evaluations[:] = [one for one in evaluations if _env_steps(one) in newest]

    @property
    def rows(self) -> dict[int, dict[str, EvaluationRow]]:
        """The rows that count: by env steps of the evaluation, and by condition."""
        found: dict[int, dict[str, EvaluationRow]] = {}
        for rows in self._by_rule[self.should_explore]:
            at = _env_steps(rows)
            if not rows.keys() < found.get(at, {}).keys():
                found[at] = rows
        return dict(sorted(found.items()))

    @property
    def points(self) -> tuple[EvaluationPoint, ...]:
        """The evaluations in order of their env steps, which all differ."""
        return tuple(EvaluationPoint.of(n, one, self._first_seed) for n, one in self.rows.items())

    def frame(self) -> DataFrame:
        """Returns the wide frame of all points."""
        return wide_frame(
            {(n, who): row for n, rows in self.rows.items() for who, row in rows.items()}
        )


def wide_frame(rows: Mapping[tuple[int, str], EvaluationRow]) -> DataFrame:
    """Returns the wide frame of rows, given by env steps and condition."""
    from pandas import DataFrame, MultiIndex

    lengths = {at: _num_episodes(rows[at]) for at in sorted(rows)}
    index = [(*at, k) for at, length in lengths.items() for k in range(length)]
    table: dict[tuple[str, str], Floats] = defaultdict(lambda: np.full(len(index), math.nan))
    begin = 0
    for at, length in lengths.items():
        for name, by_agent in {RETURN: rows[at].returns, **rows[at].metrics}.items():
            for agent, values in by_agent.items():
                table[name, agent][begin : begin + len(values)] = np.array(values, float)
        begin += length
    columns = MultiIndex.from_tuples(table, names=("metric", "agent"))
    return DataFrame(table, MultiIndex.from_tuples(index, names=INDEX), columns)


def frame_of(parts: Mapping[tuple[int, str], DataFrame], like: DataFrame) -> DataFrame:
    """Returns the episodes of each condition as one wide frame; of none, `like` without rows."""
    from pandas import concat

    return concat(dict(sorted(parts.items())), names=INDEX[:2]) if parts else like[:0]


def _env_steps(rows: Mapping[str, EvaluationRow]) -> int:
    return next(iter(rows.values())).env_steps


def _num_episodes(row: EvaluationRow) -> int:
    parts = (row.returns, *row.metrics.values())
    return max((len(values) for by_agent in parts for values in by_agent.values()), default=0)
