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
    num_episodes: Mapping[str, int] = field(default_factory=dict)
    """By who was replaced."""
    sides: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By server whose agents were found to play against each other: side to agents."""
    logged_agents: frozenset[str] = frozenset()
    """Of whose actions the simulation chose any itself, in any condition."""
    env_steps_played: int = 0
    """What training had played: open episodes go on to their end; 0: not recorded."""

    @classmethod
    def of(
        cls, env_steps: int, rows: Mapping[str, EvaluationRow], first_seed: int | None
    ) -> EvaluationPoint:
        """Returns the evaluation of rows, by who was replaced; `first_seed` is where they do not
        say it."""
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

    A condition seen again begins the next evaluation, so that a point holds together even where
    training went on meanwhile and its rows differ by a few env steps. Of two evaluations at the
    same env step (the last of training and the final one) the later counts, unless it lacks
    conditions of the earlier one, as one that was stopped does: their episodes are not the same.
    Those by another rule of acting than the newest are left out.

    Args:
        most: at how many env steps evaluations are kept, the newest ones; None: all.
        is_external: whether somebody else's simulation played them.
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
        """By env steps of the evaluation, and by who was replaced."""
        found: dict[int, dict[str, EvaluationRow]] = {}
        for rows in self._by_rule[self.should_explore]:
            at = _env_steps(rows)
            if not rows.keys() < found.get(at, {}).keys():
                found[at] = rows
        return dict(sorted(found.items()))

    @property
    def points(self) -> tuple[EvaluationPoint, ...]:
        """By env steps, no two at the same."""
        return tuple(EvaluationPoint.of(n, one, self._first_seed) for n, one in self.rows.items())

    def frame(self) -> DataFrame:
        """Returns the wide frame of all points."""
        return wide_frame(
            {(n, who): row for n, rows in self.rows.items() for who, row in rows.items()}
        )


def wide_frame(rows: Mapping[tuple[int, str], EvaluationRow]) -> DataFrame:
    """Returns the frame of rows, which are given by env steps and who was replaced."""
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
    """Returns a wide frame, of the columns of another one, from the episodes of each condition."""
    from pandas import concat

    return concat(dict(sorted(parts.items())), names=INDEX[:2]) if parts else like[:0]


def _env_steps(rows: Mapping[str, EvaluationRow]) -> int:
    return next(iter(rows.values())).env_steps


def _num_episodes(row: EvaluationRow) -> int:
    parts = (row.returns, *row.metrics.values())
    return max((len(values) for by_agent in parts for values in by_agent.values()), default=0)
