"""Reads from a run how far it has come, and the metric by which a sweep compares trials."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from muxrl.orchestrator.config.schema import RETURN, TOTAL
from muxrl.orchestrator.errors import MalformedMetrics, NotARunDirectory
from muxrl.orchestrator.records.metrics import last_row, last_rows
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.series import evaluated, mean_over, metric_over
from muxrl.orchestrator.sweeps.schema import MetricConfig


class Value(NamedTuple):
    """A metric's value, its source ("evaluation" or "training"), and after how many env steps."""

    metric: float
    source: str
    env_steps: int


class Metric:
    """Reads a metric from the rows of one run.

    Args:
        config: of the metric.
        servers: by id: the run's servers, with their ``agents``.
    """

    def __init__(self, config: MetricConfig, servers: Mapping[str, Any]) -> None:
        self._config = config
        self._agents = None if config.of == TOTAL else list(servers[config.of].agents)

    def value(self, evaluation: EvaluationRow | None, joint: JointRow) -> Value | None:
        """Returns the metric of a run; None if no episode has it.

        Args:
            evaluation: the newest with all agents as learned; None: there is none yet, and training
                counts.
            joint: the newest row of the run.
        """
        if self._config.source == "evaluation" and evaluation is not None:
            value, source = self.evaluated(evaluation), "evaluation"
            env_steps = evaluation.env_steps
        else:
            value, source, env_steps = self.trained(joint), "training", joint.env_steps
        return None if value is None else Value(value, source, env_steps)

    def evaluated(self, row: EvaluationRow) -> float | None:
        """Returns an evaluation's metric; None if no episode had it, or a server was replaced."""
        if row.replaced is not None:
            return None
        return evaluated(row, self._config.name, self._agents)

    def trained(self, row: JointRow) -> float | None:
        """Returns the metric of recent training episodes; None if it is missing or not finite."""
        agents, name = self._agents, self._config.name
        if name != RETURN:
            value = row.group_metrics.get(name, {}).get(self._config.of)
            if value is not None:
                return value
            return metric_over(row.metrics.get(name, {}), agents, mean_over)  # an older row
        if self._config.of in row.returns:  # missing in rows of older versions
            return row.returns[self._config.of]
        means = row.episode_return_mean
        known = [
            v for who in (means if agents is None else agents) if (v := means.get(who)) is not None
        ]
        total = sum(known)
        if not known or not math.isfinite(total):
            return None
        return total if agents is None else total / len(known)


def progress_of(run: RunDirectory, config: MetricConfig) -> dict[str, Any]:
    """Returns how far a run has come, by a trial's fields; {} if it has recorded nothing yet.

    Args:
        run: its directory.
        config: the sweep's metric.
    """
    with contextlib.suppress(MalformedMetrics, NotARunDirectory):  # a file was edited
        if (joint := last_row(run.metrics / "joint.jsonl", JointRow)) is None:
            return {}
        rows = last_rows(run.metrics / "evaluation.jsonl", EvaluationRow)
        evaluation = next((row for row in rows if row.replaced is None), None)
        found = Metric(config, run.read_plan().servers).value(evaluation, joint)
        return {
            "env_steps": joint.env_steps,
            "time_s": joint.time_s or 0.0,
            "cpu_s": joint.cpu_s or 0.0,
            **({"metric": found.metric, "metric_source": found.source} if found else {}),
        }
    return {}
