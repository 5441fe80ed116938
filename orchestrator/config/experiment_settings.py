"""The settings of an experiment that decide its results: how it plays and learns.

Runs that agree in these settings, and in which agents each server has, are seeds of one experiment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from muxrl.orchestrator.config.merge import diff, flat
from muxrl.orchestrator.config.schema import ExperimentConfig, SimulationConfig
from muxrl.servers.config import ServerConfig
from muxrl.servers.declared import use_of

Settings = Mapping[str, str]
"""Value by dotted key; a setting that is not given has its default."""


def server_settings(
    server: ServerConfig, defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> Settings:
    """Returns the settings of a server; keys of its ``settings`` have no prefix.

    Args:
        server: as the user wrote it.
        defaults: of its ``settings`` and ``model``, for keys that the user did not give.
    """
    found = {
        key.removeprefix("settings."): value
        for tree in (defaults, server)
        for key, value in _shaping(tree, ServerConfig).items()
    }
    return {"algorithm": ""} | found | {"algorithm": server.algorithm.upper()}


def simulation_settings(simulation: SimulationConfig) -> Settings:
    """Returns the settings of the simulations."""
    return _shaping(simulation, SimulationConfig)


def experiment_settings(config: ExperimentConfig) -> Settings:
    """Returns the settings of an experiment.

    Of `initialize_from` only whether it is given counts: each seed may begin with another
    checkpoint.
    """
    found = {f"simulation.{k}": v for k, v in simulation_settings(config.simulation).items()}
    for server_id, server in config.servers.items():
        found |= {
            f"{server_id}.{key}": value
            for key, value in server_settings(server).items()
            if key.partition(".")[0] not in ("initialize_from", "initialize_policies")
        }
        begins_with = "a checkpoint" if server.initialize_from else "new weights"
        found[f"{server_id}.initialize_from"] = begins_with
    around = {"evaluation": dataclasses.asdict(config.evaluation)}
    return found | _shaping(around, ExperimentConfig)


def _shaping(tree: Any, schema: type) -> dict[str, str]:
    """Returns the given keys that change results, with their values."""
    shapes = {k: v for k, v in flat(tree).items() if use_of(schema, k.split(".")).shapes_results}
    return {key: str(value) for key, value in shapes.items()}


def conflicts(ours: Settings, theirs: Settings) -> list[str]:
    """Returns the keys that differ, each with both values.

    A metric of the simulation that only one side has is no difference.
    """
    return [
        f"{key} is {ours.get(key, 'its default')} against {theirs.get(key, 'its default')}"
        for key in diff(ours, theirs)
        if not key.startswith("simulation.metrics") or (key in ours and key in theirs)
    ]
