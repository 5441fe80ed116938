"""Selects whose return or metric is measured: one number an episode from a run's wide frame."""

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
        kind: of "total" the number is the sum over all agents, of others the mean over `agents`; a
            "metric" may also be the whole episode's own.
        name: of the server, side, role, team, agent or metric; ``hits:prey`` for the metric of a
            role.
        agents: the agents whose return or metric is measured; `COMMON` alone: the whole episode.
        metric: name of the metric, or `RETURN`.
    """

    kind: Kind
    name: str
    agents: tuple[str, ...]
    metric: str = RETURN

    @property
    def key(self) -> str:
        """The subject's unique name: ``role:prey``, ``total``, ``metric:win``."""
        return self.kind if self.kind == "total" else f"{self.kind}:{self.name}"

    @property
    def title(self) -> str:
        """The subject's name with the number of its agents, for headings."""
        if len(self.agents) == 1:
            return self.name
        how = "sum" if self.kind == "total" else "mean"
        return f"{self.name} ({how} over {len(self.agents)} agents)"

    def of(self, evaluations: DataFrame) -> Series:
        """Returns the subject's number in each episode, by the index of the wide frame.

        An agent that was not in an episode does not count there; NaN if none was.
        """
        columns = [(self.metric, agent) for agent in self.agents]
        own = evaluations.reindex(columns=columns)
        return own.sum(axis=1, min_count=1) if self.kind == "total" else own.mean(axis=1)

    def returns(self, by_agent: AgentReturns) -> Floats:
        """Returns the subject's return in each episode: ``[num_episodes]``."""
        return returns_by_episode(by_agent, self.agents, is_sum=self.kind == "total")


@dataclass(frozen=True)
class Measured:
    """A subject's number in each episode of one evaluation.

    Attributes:
        env_steps: env steps of training before the evaluation.
        first_seed: as `EvaluationPoint.first_seed`.
        episodes: by condition: ``[num_episodes]``, NaN in an episode without any of the subject's
            agents; conditions without any number are left out, except `AS_LEARNED`.
        in_place: the condition in which the subject's own agents are random; "": there is none.
        time_s: seconds of training before the evaluation; NaN: not recorded.
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
        """Returns the numbers of an evaluation; None if the subject took no part in it."""
        known = {who: one for who, one in episodes.items() if np.isfinite(one).any()}
        if AS_LEARNED not in known:
            return None
        return cls(point.env_steps, point.first_seed, known, in_place, point.time_s)

    @property
    def learned(self) -> Floats:
        """The numbers with all agents as learned."""
        return self.episodes[AS_LEARNED]

    @property
    def random(self) -> Floats | None:
        """The numbers with the subject's own agents at random; None: not measured."""
        return self.episodes.get(self.in_place) if self.in_place else None

    @property
    def untrained(self) -> Floats | None:
        """The numbers with the subject's own agents untrained; None: not measured."""
        return self.episodes.get(untrained(self.in_place))

    def mean(self, replaced: str = AS_LEARNED) -> float:
        """Returns the mean over the episodes of a condition; NaN if no episode has a number."""
        episodes = self.episodes.get(replaced, _NONE)
        known = episodes[np.isfinite(episodes)]
        return float(known.mean()) if len(known) else math.nan

    def cut(self, num_episodes: int) -> Measured:
        """Returns only the first episodes."""
        first = {who: episodes[:num_episodes] for who, episodes in self.episodes.items()}
        known = {w: one for w, one in first.items() if w == AS_LEARNED or np.isfinite(one).any()}
        return replace(self, episodes=known)


def measured(
    evaluations: DataFrame,
    points: Iterable[EvaluationPoint],
    subject: Subject,
    in_place: str = "",
) -> list[Measured]:
    """Returns a subject's numbers in each evaluation that it took part in.

    Args:
        evaluations: a run's evaluations, as one wide frame.
        points: the evaluations that count.
        subject: the subject.
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
    """Returns the last evaluation of each run; [] if a run has none.

    If all runs have evaluations with these conditions, it is the last of these.
    """
    whole = [[one for one in run if one.episodes.keys() >= set(conditions)] for run in runs]
    usable = whole if all(whole) else runs
    return [run[-1] for run in usable] if all(usable) else []


def curve_of(points: Iterable[Measured]) -> tuple[tuple[float, float], ...]:
    """Returns (env steps, mean with all agents as learned) of each evaluation."""
    return tuple((float(point.env_steps), point.mean()) for point in points)
