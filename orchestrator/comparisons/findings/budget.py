"""At how much training runs are compared, and which evaluation of each run counts there.

Runs are compared at the largest number of env steps at which every one of them was evaluated, give
or take `TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muxrl.orchestrator.comparisons.findings.compared_runs import ComparedRun
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.records.recorded_run import EvaluationPoint

TOLERANCE = 0.05
"""Runs stop, and are evaluated, a few env steps apart; a twentieth of a budget is no advantage."""


@dataclass(frozen=True)
class Budget:
    """How much training is compared.

    Attributes:
        place: env steps near which every learning run was evaluated; 0 if none learns. Each run is
            scored at its last evaluation within `TOLERANCE` of it, see `point_at`.
        env_steps: the fewest that a run had at that evaluation.
        longest: the most env steps after which any run was evaluated.
        is_cut: whether some runs were trained for longer, and that part is left out.
        num_episodes: episodes of each run's evaluation that count, the same for all.
    """

    place: int
    env_steps: int
    longest: int
    is_cut: bool
    num_episodes: int


def find_budget(runs: Sequence[ComparedRun], wanted: int | None = None) -> Budget:
    """Returns the largest budget at which all learning runs were evaluated.

    Args:
        runs: all runs that are compared.
        wanted: the budget in env steps; None: the largest possible.

    Raises:
        CannotCompare: there is no such budget, or no evaluation near `wanted`.
    """
    learning = [run for run in runs if run.learns]
    if not learning:
        return Budget(0, 0, 0, False, min(num_episodes_of(run.points[-1]) for run in runs))
    last = {run: run.points[-1].env_steps for run in learning}
    longest, shortest = max(last.values()), min(last.values())
    if wanted is not None and shortest < wanted * (1 - TOLERANCE):
        run = min(last, key=lambda r: last[r])
        raise CannotCompare(
            f"the budget of {wanted:,} env steps is more than run {run.name!r} has: it was last "
            f"evaluated after {last[run]:,}"
        )
    places = (
        [wanted]
        if wanted is not None
        else sorted({point.env_steps for run in learning for point in run.points}, reverse=True)
    )
    for place in places:
        points = [p for run in learning if (p := _point_near(run, place)) is not None]
        if len(points) == len(learning) and (place > 0 or longest == 0):
            fixed = [run.points[-1] for run in runs if not run.learns]
            return Budget(
                place=place,
                env_steps=min(point.env_steps for point in points),
                longest=longest,
                is_cut=longest > place * (1 + TOLERANCE),
                num_episodes=min(map(num_episodes_of, [*points, *fixed])),
            )
    if wanted is not None:
        raise CannotCompare(f"not every run was evaluated after about {wanted:,} env steps")
    ends = [next(r for r in learning if last[r] == end) for end in (shortest, longest)]
    raise CannotCompare(
        f"runs have different budgets and no common point to cut them to: {ends[0].name!r} was "
        f"last evaluated after {shortest:,} env steps, {ends[1].name!r} after {longest:,}; train "
        "them for equally many, or set evaluation.interval_env_steps so that they can be cut"
    )


def point_at(run: ComparedRun, budget: Budget) -> EvaluationPoint:
    """Returns the evaluation at which a run is scored: its last one, if nothing in it learns.

    Raises:
        ValueError: the run has no evaluation near the budget, so the budget is not of this run.
    """
    point = _point_near(run, budget.place) if run.learns else run.points[-1]
    if point is None:
        raise ValueError(f"run {run.name!r} was not evaluated near {budget.place:,} env steps")
    return point


def num_episodes_of(point: EvaluationPoint) -> int:
    """Returns the number of an evaluation's episodes with all agents as learned."""
    return max(len(returns) for returns in point.returns[None].values())


def _point_near(run: ComparedRun, place: int) -> EvaluationPoint | None:
    """Of the evaluations after about `place` env steps, the one with most of them."""
    near = [p for p in run.points if abs(p.env_steps - place) <= TOLERANCE * place]
    return near[-1] if near else None
