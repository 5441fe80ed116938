"""Returns of a run that goes on: for each role of each server in training, evaluated, and with
random actions in its place."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from muxrl.orchestrator.measure.against_random import AgainstRandom, against_random
from muxrl.orchestrator.measure.statistics import NUM_RESAMPLES, Estimate
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.recorded_run import AgentReturns, EvaluationPoint, Floats
from muxrl.orchestrator.watch.thinned import Thinned
from muxrl.protocol.patterns import unnumbered

_NUM_RESAMPLES = 2_000  # as for the bands of the report's picture
_MOST_EVALUATIONS = 150
_MOST_ROLES = 4
"""Of a server: with more, names that end in numbers say nothing of roles."""


@dataclass(frozen=True)
class Role:
    """Agents of one server that are shown as one curve, the mean over them."""

    server_id: str
    name: str
    """"" where it is all agents of the server."""
    agents: tuple[str, ...]


def roles_of(plan: Mapping[str, Any]) -> list[Role]:
    """Returns the roles of a run's servers: the groups, else the agents of one name.

    ``predator_0`` and ``predator_1`` have the name ``predator``. A server with one role, or more
    than four, is shown as a whole.

    Args:
        plan: as `RunDirectory.read_plan` returns it.
    """
    roles = []
    for server_id, server in plan["servers"].items():
        group_of = {a: g for g, members in server.get("groups", {}).items() for a in members}
        by_name: dict[str, list[str]] = {}
        for agent in server["agents"]:
            name = group_of.get(agent) or unnumbered(agent)
            by_name.setdefault(name, []).append(agent)
        if not 1 < len(by_name) <= _MOST_ROLES:
            by_name = {"": server["agents"]}
        roles += [Role(server_id, name, tuple(agents)) for name, agents in by_name.items()]
    return roles


class TrainingReturns:
    """The training curves, from joint records."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._curves = {role: Thinned() for role in roles}

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes a joint record."""
        by_agent = record.get("episode_return_mean") or {}
        for role, curve in self._curves.items():
            known = [by_agent[agent] for agent in role.agents if by_agent.get(agent) is not None]
            if known:
                curve.add((record["env_steps"], sum(known) / len(known)))

    def of(self, role: Role) -> Sequence[tuple[Any, ...]]:
        """Returns points ``(env_steps, mean return)``."""
        return self._curves[role].points


class EvaluatedReturns:
    """The evaluations, from their records, one for each condition."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._roles = roles
        self._should_explore: bool | None = None
        self._begin()

    def _begin(self) -> None:
        self._newest: tuple[int, dict[str | None, AgentReturns]] | None = None
        self._sides: dict[str, dict[str, tuple[str, ...]]] = {}
        self._curves = {role: Thinned(most=_MOST_EVALUATIONS) for role in self._roles}

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes an evaluation record; those of another rule of acting than the newest are left out.

        A condition seen again begins the next evaluation, and one at the same env steps goes on
        with it, as in the report (`RecordedRun.read`).
        """
        if bool(record.get("should_explore")) != self._should_explore:
            self._should_explore = bool(record.get("should_explore"))
            self._begin()
        env_steps, replaced = int(record["env_steps"]), record["replaced"]
        condition = Condition.of_record(record)
        if self._newest is None or (replaced in self._newest[1] and self._newest[0] != env_steps):
            self._newest = env_steps, {}
            self._sides = {}
        self._newest[1][replaced] = record["returns"]
        if condition.server_id is not None and condition.side:
            self._sides.setdefault(condition.server_id, {})[condition.side] = condition.agents
        point = EvaluationPoint(*self._newest, sides=self._sides)
        for role, curve in self._curves.items():
            learned = point.returns_of(role.agents, None)
            if learned is not None and condition.server_id in (None, role.server_id):
                random, untrained = (
                    point.returns_of(role.agents, key) for key in _keys(role, point)
                )
                curve.add((point.env_steps, _Measured(point.env_steps, learned, random, untrained)))

    def shown(self, role: Role, until_s: float) -> dict[str, Any]:
        """Returns for the page: points ``(env_steps, mean, low, high)``, and of the last evaluation
        the advantage, and untrained agents' ``(mean, low, high)``.

        Ends of intervals are None where there are too few episodes for one, or not yet computed.

        Args:
            role: whose.
            until_s: by the monotonic clock; intervals that are not computed by then are left for
                the next time, the newest point's excepted.
        """
        measured: list[_Measured] = [point for _, point in self._curves[role].points]
        for point in reversed(measured):
            if point.estimate is None and (point is measured[-1] or time.monotonic() < until_s):
                point.compute(NUM_RESAMPLES if point is measured[-1] else _NUM_RESAMPLES)
        last = next((m for m in reversed(measured) if m.random is not None), None)
        compared = last.estimate if last else None
        return {
            "evaluated": [
                m.shown(m.learned, m.estimate.learned if m.estimate else None) for m in measured
            ],
            "random": [
                m.shown(m.random, m.estimate.random if m.estimate else None)
                for m in measured
                if m.random is not None
            ],
            "untrained": _ends(compared.untrained) if compared and compared.untrained else None,
            "advantage": _ends(compared.advantage) if compared and compared.advantage else None,
            "verdict": str(compared.verdict) if compared else "",
            "num_episodes": measured[-1].num_episodes if measured else 0,
            "has_more": any(m.estimate is None for m in measured),
        }


@dataclass
class _Measured:
    """One evaluation of a role; intervals take tens of milliseconds, so they come later."""

    env_steps: int
    learned: Floats
    """For each episode."""
    random: Floats | None
    untrained: Floats | None
    estimate: AgainstRandom | None = None

    @property
    def num_episodes(self) -> int:
        return int(np.isfinite(self.learned).sum())

    def compute(self, num_resamples: int) -> None:
        self.estimate = against_random(
            self.env_steps,
            [self.learned],
            None if self.random is None else [self.random],
            None if self.untrained is None else [self.untrained],
            num_resamples=num_resamples,
        )

    def shown(self, returns: Floats, estimate: Estimate | None) -> tuple[float | None, ...]:
        ends = _ends(estimate) if estimate else (float(np.nanmean(returns)), None, None)
        return self.env_steps, *ends


def _keys(role: Role, point: EvaluationPoint) -> tuple[str | None, str | None]:
    """Returns the conditions that replace a role by random and by untrained agents: alone, if its
    agents were one side of their server."""
    sides = point.sides.get(role.server_id, {})
    side = next((s for s, agents in sides.items() if set(agents) == set(role.agents)), "")
    alone = Condition(role.server_id, side)
    return alone.key, replace(alone, is_untrained=True).key


def _ends(estimate: Estimate) -> tuple[float | None, ...]:
    return tuple(
        value if math.isfinite(value) else None
        for value in (estimate.mean, estimate.low, estimate.high)
    )
