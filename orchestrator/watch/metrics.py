"""The simulation's metrics of a run that goes on: of its episodes, and of each server's agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.recorded_run import returns_by_episode
from muxrl.orchestrator.watch.thinned import Point, Thinned

_MOST_CURVES = 40
"""Of training, and as many evaluated; who has more metrics finds them in the files."""
_MOST_EVALUATIONS = 150
_Curves = dict[tuple[str, str | None], Thinned]
"""By metric, and server; None: of the episode."""


class MetricCurves:
    """Curves of training and of evaluations with all agents as learned.

    Args:
        servers: server to its agents.
    """

    def __init__(self, servers: Mapping[str, list[str]]) -> None:
        self._agents: dict[str | None, list[str]] = {None: [COMMON]}
        self._agents.update(servers)
        self.begin_training()
        self.begin_evaluations()

    def begin_training(self) -> None:
        """Forgets joint records: the file is read from its beginning."""
        self._training: _Curves = {}

    def begin_evaluations(self) -> None:
        """Forgets evaluation records, likewise."""
        self._evaluated: _Curves = {}

    def add_training(self, record: Mapping[str, Any]) -> None:
        """Takes a joint record."""
        for name, means in (record.get("metrics") or {}).items():
            values = {who: [mean] for who, mean in means.items()}
            self._add(self._training, name, values, record, Thinned)

    def add_evaluation(self, record: Mapping[str, Any]) -> None:
        """Takes an evaluation record."""
        if record["replaced"] is None:
            for name, values in record.get("metrics", {}).items():
                self._add(
                    self._evaluated, name, values, record, lambda: Thinned(most=_MOST_EVALUATIONS)
                )

    def _add(
        self, curves: _Curves, name: str, values: Mapping[str, Any], record: Any, make: Any
    ) -> None:
        for server_id, agents in self._agents.items():
            by_episode = returns_by_episode(values, agents)
            if np.isfinite(by_episode).any():
                key = name, server_id
                if key not in curves and len(curves) < _MOST_CURVES:
                    curves[key] = make()
                if key in curves:
                    curves[key].add((record["env_steps"], float(np.nanmean(by_episode))))

    def shown(self) -> list[dict[str, Any]]:
        """Returns for the page, by name: points ``(env_steps, mean)`` for each that has it."""
        names = sorted({name for name, _ in (*self._training, *self._evaluated)})
        return [
            {
                "name": name,
                "of": [
                    {"server": server_id, "training": training, "evaluated": evaluated}
                    for server_id in self._agents
                    if (training := self._points(self._training, name, server_id))
                    + (evaluated := self._points(self._evaluated, name, server_id))
                ],
            }
            for name in names
        ]

    @staticmethod
    def _points(curves: _Curves, name: str, server_id: str | None) -> list[Point]:
        curve = curves.get((name, server_id))
        return list(curve.points) if curve else []
