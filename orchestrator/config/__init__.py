"""An experiment's config: YAML in, plans for each server out, every mistake by name.

    config = load_config("experiments/conf/tag.yaml", ["seed=1"])
    experiment = resolve(config, probe(config.simulation))

Both raise `ConfigError` with one sentence for each problem. Importing this package imports
neither ray nor torch; `resolve` does, for the algorithms' settings.
"""

from muxrl.client.first_look import SimulationFacts
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
from muxrl.orchestrator.config.resolve import prepare, resolve
from muxrl.orchestrator.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExperimentConfig,
    ExternalAgentConfig,
    GatewayConfig,
    SimulationConfig,
    StopConfig,
    TimeoutsConfig,
)
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import ConfigError

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "ConfigSource",
    "EvaluationConfig",
    "Experiment",
    "ExperimentConfig",
    "ExternalAgentConfig",
    "GatewayConfig",
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
    "resolve",
    "to_yaml",
]
