"""The simulation's own metrics of one run, or of several that differ in nothing but the seed.

What is better, the simulation's author knows: here are values, and no verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.measure.against_random import AgainstRandom, against_random
from muxrl.orchestrator.measure.statistics import (
    Estimate,
    Unit,
    are_proportions,
)
from muxrl.orchestrator.measure.subjects import Subject, curve_of, last_of_each, measured
from muxrl.orchestrator.records.recorded_run import RecordedRun, TrainingCurve


@dataclass(frozen=True)
class MetricResult:
    """One metric, of whole episodes or of one server's agents."""

    name: str
    server_id: str | None
    """Whose agents it is the mean over; None: it is of the whole episode."""
    train: float | None
    """Last mean while training, exploration included, mean over seeds."""
    env_steps: float | None
    """Env steps of training before the evaluation, mean over seeds; None: not evaluated."""
    evaluated: Estimate | None
    num_episodes: int
    """Evaluated episodes that had it, over all seeds."""
    random: dict[str, Estimate] = field(default_factory=dict)
    """By server, the same with that server's agents at random; of a server's metric, its own."""
    training: tuple[TrainingCurve, ...] = ()
    """For each seed."""
    seed_curves: tuple[tuple[tuple[float, float], ...], ...] = ()
    """For each seed, (env steps, mean) of its evaluations."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the same for ``summary.json``; training curves are in the run's metrics."""
        return {
            "name": self.name,
            "server": self.server_id,
            "train": self.train,
            "env_steps": self.env_steps,
            "evaluated": self.evaluated and asdict(self.evaluated),
            "num_episodes": self.num_episodes,
            "random": {s: asdict(estimate) for s, estimate in self.random.items()},
            "curves": self.seed_curves,
        }


def metric_results(
    runs: Sequence[RecordedRun], unit: Unit = Unit.EPISODES
) -> tuple[MetricResult, ...]:
    """Computes every metric that was recorded, those of whole episodes first.

    Args:
        runs: with the same servers.
        unit: what intervals are over.
    """
    found = (
        _result(runs, name, server_id, unit)
        for name in sorted({name for run in runs for name in run.metric_names})
        for server_id in (None, *runs[0].servers)
    )
    return tuple(one for one in found if one.train is not None or one.evaluated is not None)


def _result(
    runs: Sequence[RecordedRun], name: str, server_id: str | None, unit: Unit
) -> MetricResult:
    servers = runs[0].servers
    agents = (COMMON,) if server_id is None else servers[server_id].agents
    subject = Subject("metric", name, agents, name)
    compared = [s for s, server in servers.items() if server.learns and server_id in (None, s)]
    # What the simulation says of an episode; its length and parameters are no proportions.
    is_proportion = name in runs[0].metrics and are_proportions(
        subject.of(run.evaluations).to_numpy() for run in runs
    )

    found = [measured(run.evaluations, run.points, subject) for run in runs]
    last = last_of_each(found, compared)

    def judged(in_place: str) -> AgainstRandom:
        points = [replace(point, in_place=in_place) for point in last]
        return against_random(points, unit, is_proportion=is_proportion)

    learned = judged("") if last else None
    at_random = {s: judged(s).random for s in compared} if last else {}
    training = tuple(
        curve for run in runs if (curve := run.metric_training.get((name, server_id))) is not None
    )
    return MetricResult(
        name=name,
        server_id=server_id,
        train=float(np.mean([curve.returns[-1] for curve in training])) if training else None,
        env_steps=learned.env_steps if learned else None,
        evaluated=learned.learned if learned else None,
        num_episodes=learned.num_episodes if learned else 0,
        random={s: found for s, found in at_random.items() if found is not None},
        training=training,
        seed_curves=tuple(map(curve_of, found)),
    )
