"""A sweep's YAML and overrides to `SweepConfig`, its base experiment filled in; and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from muxrl.orchestrator.config import ExperimentConfig, find_config, load_config
from muxrl.orchestrator.config.load import load_structured, mask_tokens, mask_tokens_of
from muxrl.orchestrator.config.merge import read_yaml
from muxrl.orchestrator.config.overrides import Overrides, override_keys, override_value
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.schema import SweepConfig

_RESUMABLE = ("max_concurrent", "report_interval_s", "address")
"""Keys that change how trials are run, not which."""


def load_sweep(path: str | Path, overrides: Overrides = ()) -> SweepConfig:
    """Reads a sweep.

    Args:
        path: a YAML file, or the bare name of a packaged sweep.
        overrides: on top of the file, see `Overrides`; `experiment.` leads to the experiment.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations, of
            the sweep or of the experiment it is based on.
    """
    file = find_config(path, "sweeps")
    base = read_yaml(file)[0].get("base")
    base = override_value(overrides, "base", base)
    defaults = SweepConfig(name=file.stem, experiment=ExperimentConfig(name=file.stem))
    if isinstance(base, str) and base:  # a base of another type is an error below
        beside = file.parent / base
        defaults.experiment = load_config(beside if beside.is_file() else base)
    return load_structured(file, defaults, overrides, str(path))


def load_resumed(file: Path, overrides: Overrides = ()) -> SweepConfig:
    """Reads what `to_yaml` wrote, to resume the sweep.

    Args:
        file: of the sweep's directory.
        overrides: only those that do not change the trials; masked tokens are given here.

    Raises:
        ConfigError: it cannot be read, or an override would change the trials.
    """
    refused = [
        f"override of {key!r}: a sweep goes on with the trials it has; only "
        f"{', '.join(_RESUMABLE)} and tokens can be given anew"
        for key in override_keys(overrides)
        if key not in _RESUMABLE and not key.endswith(".token")
    ]
    if refused:
        raise ConfigError(refused, str(file))
    return load_structured(file, SweepConfig(), overrides, str(file))


def load_written(file: Path) -> SweepConfig:
    """Reads what `to_yaml` wrote, for its results; masked tokens come back as none.

    Raises:
        ConfigError: it cannot be read.
    """
    raw, _ = read_yaml(file)
    open_tokens = [
        f"{where}.{name}.token=''"
        for where, servers in (
            ("experiment.servers", raw.get("experiment", {}).get("servers", {})),
            ("algorithms", raw.get("algorithms", {})),
        )
        for name, server in servers.items()
        if server.get("token") == "???"
    ]
    return load_structured(file, SweepConfig(), open_tokens, str(file))


def to_yaml(config: SweepConfig) -> str:
    """Returns every setting, defaults and base included; tokens masked, as in a run's config."""
    hidden = replace(
        config,
        base="",
        experiment=mask_tokens(config.experiment),
        algorithms=mask_tokens_of(config.algorithms),
    )
    return OmegaConf.to_yaml(OmegaConf.structured(hidden))
