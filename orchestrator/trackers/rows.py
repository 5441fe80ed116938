"""Rows of metrics as names and numbers, the same for every tracker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.json_files import finite


def numbers(name: str, record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of one row.

    Those of a server are under ``SERVER/``, those of the run under ``joint/``, with the path in the
    row: ``prey/learner/team/qf_loss``. Of an evaluation each agent's mean return is under
    ``evaluation/all_learned/AGENT``, ``evaluation/SERVER_random/AGENT`` or
    ``evaluation/SERVER_untrained/AGENT``, each metric's mean under
    ``evaluation/all_learned/metrics/METRIC/AGENT`` and so on.

    Args:
        name: of the row's file, without its ending.
        record: the row; see `muxrl.orchestrator.records.metrics`.
    """
    if name != "evaluation":
        return {f"{name}/{key}": x for key, x in _scalars(record) if key != "env_steps"}
    parts = {"": record["returns"]}
    parts |= {f"metrics/{key}/": values for key, values in record.get("metrics", {}).items()}
    condition = Condition.of_record(record)
    return {
        f"evaluation/{condition.label}/{part}{agent_id}": mean
        for part, by_agent in parts.items()
        for agent_id, values in by_agent.items()
        if (mean := _mean(values)) is not None
    }


def _scalars(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields each finite number of a nested record with its path: ``learner/team/qf_loss``."""
    for name, value in finite(values).items():
        if isinstance(value, Mapping):
            for inner, number in _scalars(value):
                yield f"{name}/{inner}", number
        elif isinstance(value, int | float):
            yield name, float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
