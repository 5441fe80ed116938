"""Reads an experiment's YAML and turns it into a plan for each server; names every mistake.

    config = load_config("experiments/conf/tag.yaml", ["seed=1"])
    experiment = prepare(config)

Both raise `ConfigError` with one sentence for each problem. Importing this package imports
neither ray nor torch nor a YAML parser: a process that plays gets a config that was read before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from muxrl.client.first_look import SimulationFacts
from muxrl.orchestrator.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExperimentConfig,
    ExternalAgentConfig,
    SimulationConfig,
    StopConfig,
    TimeoutsConfig,
)
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from muxrl.orchestrator.config.experiment import Experiment
    from muxrl.orchestrator.config.facts import probe
    from muxrl.orchestrator.config.load import (
        ConfigSource,
        find_config,
        from_yaml,
        load_config,
        packaged_configs,
        to_yaml,
    )
    from muxrl.orchestrator.config.overrides import Overrides
    from muxrl.orchestrator.config.resolve import prepare

_MODULES = {
    "ConfigSource": "load",
    "Experiment": "experiment",
    "Overrides": "overrides",
    "find_config": "load",
    "from_yaml": "load",
    "load_config": "load",
    "packaged_configs": "load",
    "prepare": "resolve",
    "probe": "facts",
    "to_yaml": "load",
}
"""By name that is imported at its first use: the module that has it."""

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "ConfigSource",
    "EvaluationConfig",
    "Experiment",
    "ExperimentConfig",
    "ExternalAgentConfig",
    "Overrides",
    "SimulationConfig",
    "SimulationFacts",
    "StopConfig",
    "TimeoutsConfig",
    "derive_seed",
    "find_config",
    "from_yaml",
    "load_config",
    "packaged_configs",
    "prepare",
    "probe",
    "to_yaml",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
