"""Whose return or metric is measured: a rule from a run's wide frame to one number an episode."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from muxrl.orchestrator.measure.statistics import Floats
from muxrl.orchestrator.records.conditions import untrained
from muxrl.orchestrator.records.evaluations import AS_LEARNED, RETURN, EvaluationPoint
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.orchestrator.records.series import returns_by_episode

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_NONE: Floats = np.empty(0)
Kind = Literal["server", "side", "role", "team", "agent", "total", "metric"]


@dataclass(frozen=True)
class Subject:
    """Some agents whose return is measured, or one of the simulation's metrics.

    Attributes:
        kind: the return of "total" is the sum over all agents, that of all others the mean over
            their agents; a metric is of the episode, or the mean over some agents.
        name: of the server, side, role, team, agent or metric; of a role's metric ``hits:prey``.
        agents: whose return or metric it is; `COMMON` alone: the episode's.
        metric: its name.
    """

    kind: Kind
    name: str
    agents: tuple[str, ...]
    metric: str = RETURN

    @property
    def key(self) -> str:
        """Its name among all subjects: ``role:prey``, ``total``, ``metric:win``."""
        return self.kind if self.kind == "total" else f"{self.kind}:{self.name}"

    @property
    def title(self) -> str:
        """Its name with the number of agents, for headings."""
        if len(self.agents) == 1:
            return self.name
        how = "sum" if self.kind == "total" else "mean"
        return f"{self.name} ({how} over {len(self.agents)} agents)"

    def of(self, evaluations: DataFrame) -> Series:
        """Returns its number in each episode, by the index of the wide frame.

        An agent that was not in an episode does not count there; NaN where none was.
        """
        columns = [(self.metric, agent) for agent in self.agents]
        own = evaluations.reindex(columns=columns)
        return own.sum(axis=1, min_count=1) if self.kind == "total" else own.mean(axis=1)

    def returns(self, by_agent: AgentReturns) -> Floats:
        """Returns the same of episodes that were just played: ``[num_episodes]``."""
        return returns_by_episode(by_agent, self.agents, is_sum=self.kind == "total")


@dataclass(frozen=True)
class Measured:
    """What a subject had in each episode of one evaluation.

    Attributes:
        env_steps: of training before it.
        first_seed: as `EvaluationPoint.first_seed`.
        episodes: by who was replaced ``[num_episodes]``, NaN in an episode that nobody of it was
            in; conditions in which no episode had it are left out, but never `AS_LEARNED`.
        in_place: the condition in which its own agents are at random; "": there is none.
        time_s: seconds of training before it; NaN: not recorded.
    """

    env_steps: int
    first_seed: int | None
    episodes: Mapping[str, Floats]
    in_place: str = ""
    time_s: float = math.nan

    @classmethod
    def of(
        cls, point: EvaluationPoint, episodes: Mapping[str, Floats], in_place: str
    ) -> Measured | None:
        """Returns what an evaluation measured; None if the subject took no part in it."""
        known = {who: one for who, one in episodes.items() if np.isfinite(one).any()}
        if AS_LEARNED not in known:
            return None
        return cls(point.env_steps, point.first_seed, known, in_place, point.time_s)

    @property
    def learned(self) -> Floats:
        """With all agents as learned."""
        return self.episodes[AS_LEARNED]

    @property
    def random(self) -> Floats | None:
        """With its own agents at random; None: not measured."""
        return self.episodes.get(self.in_place) if self.in_place else None

    @property
    def untrained(self) -> Floats | None:
        """And as their server began."""
        return self.episodes.get(untrained(self.in_place))

    def mean(self, replaced: str = AS_LEARNED) -> float:
        """Returns the mean over its episodes; NaN if none had it."""
        episodes = self.episodes.get(replaced, _NONE)
        known = episodes[np.isfinite(episodes)]
        return float(known.mean()) if len(known) else math.nan

    def cut(self, num_episodes: int) -> Measured:
        """Returns the first episodes alone."""
        first = {who: episodes[:num_episodes] for who, episodes in self.episodes.items()}
        known = {w: one for w, one in first.items() if w == AS_LEARNED or np.isfinite(one).any()}
        return replace(self, episodes=known)


def measured(
    evaluations: DataFrame,
    points: Iterable[EvaluationPoint],
    subject: Subject,
    in_place: str = "",
) -> list[Measured]:
    """Returns what a subject had in each evaluation that it took part in.

    Args:
        evaluations: of a run, as one wide frame.
        points: those that count.
        subject: whose numbers.
        in_place: as in `Measured`.
    """
    conditions = evaluations.index.droplevel("episode")
    begins = np.flatnonzero(~conditions.duplicated())
    by_condition = np.split(subject.of(evaluations).to_numpy(), begins[1:])
    by_point: dict[int, dict[str, Floats]] = {}
    for (env_steps, who), episodes in zip(conditions[begins], by_condition, strict=False):
        by_point.setdefault(env_steps, {})[who] = episodes
    found = (Measured.of(point, by_point.get(point.env_steps, {}), in_place) for point in points)
    return [one for one in found if one is not None]


def last_of_each(runs: Sequence[Sequence[Measured]], conditions: Collection[str]) -> list[Measured]:
    """Returns the last evaluation of each run; [] if one has none.

    It is the last with these conditions, if all runs have such a one.
    """
    whole = [[one for one in run if one.episodes.keys() >= set(conditions)] for run in runs]
    usable = whole if all(whole) else runs
    return [run[-1] for run in usable] if all(usable) else []


def curve_of(points: Iterable[Measured]) -> tuple[tuple[float, float], ...]:
    """Returns (env steps, mean with all agents as learned) of each evaluation."""
    return tuple((float(point.env_steps), point.mean()) for point in points)
