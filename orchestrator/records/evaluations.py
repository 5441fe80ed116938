"""A run's evaluations as one wide frame: a row for each episode, a column for each number.

Its index is ``(env_steps, replaced, episode)``: env steps of training before the evaluation, who
was replaced (a `Condition`'s key; "" where all agents acted as learned), and the episode's place,
which is the same episode in every condition. Its columns are ``(metric, agent)``: `RETURN`, or a
metric's name, and whose it is, with `COMMON` in an agent's place where it is of the episode.
Numbers are float64, NaN where there was none. Who is measured is a
`muxrl.orchestrator.measure.subjects.Subject`. pandas, which Ray Tune brings, is imported when
needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.rows import EvaluationRow

if TYPE_CHECKING:
    from pandas import DataFrame

RETURN = "return"
"""Stands for returns among the metrics, none of which may have this name."""
AS_LEARNED = ""
INDEX = ("env_steps", "replaced", "episode")
_UNRECORDED = 10_000
"""The first seed of evaluations whose rows do not say it: those of all runs were the same then."""


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: the same weights under every condition that was measured."""

    env_steps: int
    """Env steps of training before it."""
    time_s: float = math.nan
    """Seconds of training before it; NaN where it was not recorded."""
    first_seed: int | None = None
    """Of its episodes' resets; None: those of an external simulation, which are its own."""
    num_episodes: dict[str, int] = field(default_factory=dict)
    """By who was replaced."""
    sides: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """By server whose agents were found to play against each other: side to agents."""
    logged_agents: set[str] = field(default_factory=set)
    """Of whose actions the simulation chose any itself, in any condition."""


class EvaluationSeries:
    """A run's evaluations, from their rows.

    A condition seen again begins the next evaluation, so that a point holds together even where
    training went on meanwhile and its rows differ by a few env steps. Two evaluations at the same
    env step (the last of training and the final one) are one; the later counts. Those by another
    rule of acting than the newest are left out.

    Args:
        most: how many points are kept, the newest ones; None: all.
        is_external: whether somebody else's simulation played them.
    """

    def __init__(self, most: int | None = None, *, is_external: bool = False) -> None:
        self._most = most
        self._first_seed = None if is_external else _UNRECORDED
        self.should_explore: bool | None = None
        """Whether policies sampled their actions; None: nothing was evaluated."""
        self._by_rule: dict[bool, dict[int, EvaluationPoint]] = {}
        self._newest: dict[bool, EvaluationPoint] = {}
        self._seen: dict[bool, set[str | None]] = {}
        self._rows: dict[bool, dict[tuple[int, str], EvaluationRow]] = {}

    @property
    def points(self) -> tuple[EvaluationPoint, ...]:
        """By env steps, no two at the same."""
        by_env_steps = {} if self.should_explore is None else self._by_rule[self.should_explore]
        return tuple(by_env_steps[env_steps] for env_steps in sorted(by_env_steps))

    def add(self, row: EvaluationRow) -> EvaluationPoint:
        """Returns the point that the row belongs to."""
        rule = self.should_explore = row.should_explore
        points, seen = self._by_rule.setdefault(rule, {}), self._seen.setdefault(rule, set())
        rows = self._rows.setdefault(rule, {})
        if rule not in self._newest or row.replaced in seen:
            seen.clear()
            time_s = math.nan if row.time_s is None else row.time_s
            first_seed = self._first_seed if row.first_seed is None else row.first_seed
            new = EvaluationPoint(row.env_steps, time_s, first_seed)
            self._newest[rule] = points.setdefault(row.env_steps, new)
        if self._most is not None and len(points) > self._most:
            oldest = points.pop(next(iter(points)))
            for replaced in oldest.num_episodes:
                del rows[oldest.env_steps, replaced]
        seen.add(row.replaced)
        point, replaced = self._newest[rule], row.replaced or AS_LEARNED
        rows[point.env_steps, replaced] = row
        point.num_episodes[replaced] = _num_episodes(row)
        point.logged_agents.update(row.logged_agents)
        condition = Condition.of_row(row)
        if condition.server_id is not None and condition.side:
            point.sides.setdefault(condition.server_id, {})[condition.side] = condition.agents
        return point

    def frame(self) -> DataFrame:
        """Returns the wide frame of all points."""
        return wide_frame(self._rows.get(bool(self.should_explore), {}))


def wide_frame(rows: Mapping[tuple[int, str], EvaluationRow]) -> DataFrame:
    """Returns the frame of rows, which are given by env steps and who was replaced."""
    from pandas import DataFrame, MultiIndex

    places = sorted(rows)
    parts = [{RETURN: rows[at].returns, **rows[at].metrics} for at in places]
    columns: dict[tuple[str, str], int] = {}
    for part in parts:
        for name, by_agent in part.items():
            for agent in by_agent:
                columns.setdefault((name, agent), len(columns))
    lengths = [_num_episodes(rows[at]) for at in places]
    table = np.full((sum(lengths), len(columns)), math.nan)
    begin = 0
    for part, length in zip(parts, lengths, strict=True):
        for name, by_agent in part.items():
            for agent, values in by_agent.items():
                table[begin : begin + len(values), columns[name, agent]] = np.array(values, float)
        begin += length
    index = [(*at, k) for at, length in zip(places, lengths, strict=True) for k in range(length)]
    return DataFrame(
        table,
        MultiIndex.from_tuples(index, names=INDEX),
        MultiIndex.from_tuples(columns, names=("metric", "agent")),
    )


def _num_episodes(row: EvaluationRow) -> int:
    parts = (row.returns, *row.metrics.values())
    return max((len(values) for by_agent in parts for values in by_agent.values()), default=0)
