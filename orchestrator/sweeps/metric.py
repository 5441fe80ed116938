"""The metric by which trials are compared, from what a run has measured so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muxrl.orchestrator.runs.run import Run
from muxrl.orchestrator.sweeps.schema import TOTAL, MetricConfig


@dataclass(frozen=True)
class Measured:
    """A metric's value."""

    value: float
    source: str
    """"evaluation" or "training"."""
    env_steps: int
    """Of training before the measurement."""


def measure(run: Run, config: MetricConfig) -> Measured | None:
    """Returns the newest value, None if no episode has ended yet.

    Returns are raw: sums of an agent's rewards as the simulation gave them.
    """
    record = run.evaluated
    if config.source == "evaluation" and record is not None:
        # Episodes without an agent hold no return of it.
        known = {a: [r for r in v if r is not None] for a, v in record["returns"].items()}
        means = {a: sum(values) / len(values) for a, values in known.items() if values}
        source, env_steps = "evaluation", int(record["env_steps"])
    else:
        means = run.tally.record()["episode_return_mean"]
        source, env_steps = "training", run.tally.env_steps
    agents = list(means)
    if config.of != TOTAL:
        agents = [a for a in run.experiment.servers[config.of].agents if a in means]
    value = combine(means, agents, is_sum=config.of == TOTAL)
    return None if value is None else Measured(value, source, env_steps)


def combine(means: Mapping[str, float], agents: Sequence[str], *, is_sum: bool) -> float | None:
    """Returns the agents' returns as one, None without agents or where one is no number."""
    total = sum(means[agent] for agent in agents)
    if not agents or not math.isfinite(total):
        return None
    return total if is_sum else total / len(agents)
