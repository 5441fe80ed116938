"""muxrl: several multi-agent RL trainers learn at the same time on one shared simulation.

Everything that scripts and notebooks need is a name here::

    from muxrl import MultiplexingClient          # on the simulation's side
    from muxrl import launch, sweep, compare, evaluate

    result = launch("chase", {"stop.env_steps": 20_000})

A name is imported when it is first used, so ``import muxrl`` loads nothing, and
``from muxrl import MultiplexingClient`` loads only the light client: no ray, torch or gymnasium.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muxrl.client import MultiplexingClient, PolicyClient
    from muxrl.orchestrator.api import launch, sweep
    from muxrl.orchestrator.comparisons.compare import Comparison
    from muxrl.orchestrator.comparisons.compare import compare_runs as compare
    from muxrl.orchestrator.comparisons.exploit import exploit
    from muxrl.orchestrator.config.schema import (
        EvaluationConfig,
        ExperimentConfig,
        SimulationConfig,
        StopConfig,
    )
    from muxrl.orchestrator.errors import CannotCompare, ConfigError
    from muxrl.orchestrator.evaluations.evaluate import evaluate_run as evaluate
    from muxrl.orchestrator.launch.background import BackgroundRun
    from muxrl.orchestrator.launch.result import RunResult
    from muxrl.orchestrator.load_policy import load_policy
    from muxrl.orchestrator.sweeps.result import SweepResult
    from muxrl.servers.config import ServerConfig
    from muxrl.servers.episodes.trajectories import Trajectory
    from muxrl.servers.trainers.check_trainer import check_trainer
    from muxrl.servers.trainers.interface import Acted, PolicySpec, Rows, Trainer

_EXPORTS = {
    "Acted": "muxrl.servers.trainers.interface:Acted",
    "BackgroundRun": "muxrl.orchestrator.launch.background:BackgroundRun",
    "CannotCompare": "muxrl.orchestrator.errors:CannotCompare",
    "Comparison": "muxrl.orchestrator.comparisons.compare:Comparison",
    "ConfigError": "muxrl.orchestrator.errors:ConfigError",
    "EvaluationConfig": "muxrl.orchestrator.config.schema:EvaluationConfig",
    "ExperimentConfig": "muxrl.orchestrator.config.schema:ExperimentConfig",
    "MultiplexingClient": "muxrl.client:MultiplexingClient",
    "PolicyClient": "muxrl.client:PolicyClient",
    "PolicySpec": "muxrl.servers.trainers.interface:PolicySpec",
    "Rows": "muxrl.servers.trainers.interface:Rows",
    "RunResult": "muxrl.orchestrator.launch.result:RunResult",
    "ServerConfig": "muxrl.servers.config:ServerConfig",
    "SimulationConfig": "muxrl.orchestrator.config.schema:SimulationConfig",
    "StopConfig": "muxrl.orchestrator.config.schema:StopConfig",
    "SweepResult": "muxrl.orchestrator.sweeps.result:SweepResult",
    "Trainer": "muxrl.servers.trainers.interface:Trainer",
    "Trajectory": "muxrl.servers.episodes.trajectories:Trajectory",
    "check_trainer": "muxrl.servers.trainers.check_trainer:check_trainer",
    "compare": "muxrl.orchestrator.comparisons.compare:compare_runs",
    "evaluate": "muxrl.orchestrator.evaluations.evaluate:evaluate_run",
    "exploit": "muxrl.orchestrator.comparisons.exploit:exploit",
    "launch": "muxrl.orchestrator.api:launch",
    "load_policy": "muxrl.orchestrator.load_policy:load_policy",
    "sweep": "muxrl.orchestrator.api:sweep",
}
"""By name: its "module:attribute"."""

SERVERS_PYTHON = (3, 11)
"""The oldest Python that runs more than the client; pyproject.toml has the same."""

__all__ = [
    "Acted",
    "BackgroundRun",
    "CannotCompare",
    "Comparison",
    "ConfigError",
    "EvaluationConfig",
    "ExperimentConfig",
    "MultiplexingClient",
    "PolicyClient",
    "PolicySpec",
    "Rows",
    "RunResult",
    "ServerConfig",
    "SimulationConfig",
    "StopConfig",
    "SweepResult",
    "Trainer",
    "Trajectory",
    "check_trainer",
    "compare",
    "evaluate",
    "exploit",
    "launch",
    "load_policy",
    "sweep",
]


def needs_newer_python() -> str:
    """Returns the message for a use of servers on an older Python."""
    wanted, found = (".".join(map(str, v)) for v in (SERVERS_PYTHON, sys.version_info[:2]))
    return f"needs Python {wanted} or newer, as servers do, and this is {found}"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("muxrl")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _EXPORTS[name].partition(":")
    if sys.version_info < SERVERS_PYTHON and module != "muxrl.client":
        raise ImportError(f"muxrl.{name} {needs_newer_python()}")
    try:
        value = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "muxrl").partition(".")[0] == "muxrl":
            raise
        raise ModuleNotFoundError(
            f"muxrl.{name} needs {error.name}, not installed here; it comes with: "
            "pip install 'muxrl[servers]'",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
