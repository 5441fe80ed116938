"""Simulations that many tests of one folder ask for agents and spaces: each is made once."""

from __future__ import annotations

from typing import Any

from muxrl.orchestrator.config.facts import SimulationFacts, probe
from muxrl.orchestrator.config.schema import SimulationConfig

_KNOWN: dict[str, SimulationFacts] = {}


def probe_once(simulation: SimulationConfig, **how: Any) -> SimulationFacts:
    """As `probe`, which starts a process each time."""
    key = repr((simulation, how))
    if key not in _KNOWN:
        _KNOWN[key] = probe(simulation, **how)
    return _KNOWN[key]
