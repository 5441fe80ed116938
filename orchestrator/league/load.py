"""A league's YAML and overrides to `LeagueConfig`, its base experiment filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import ExperimentConfig, find_config
from muxrl.orchestrator.config.load import load_base, load_structured, load_written
from muxrl.orchestrator.config.merge import read_yaml
from muxrl.orchestrator.config.overrides import Overrides, override_value, plain
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.launch.resuming import differences
from muxrl.orchestrator.league.schema import LeagueConfig

_RESUMABLE = ("rounds", "max_concurrent", "address", "experiment.watch")


def load_league(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> LeagueConfig:
    """Reads a league.

    Args:
        source: a YAML file, or the bare name of a packaged league; or what such a file would say.
        overrides: on top of it, see `Overrides`.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations.
    """
    if isinstance(source, Mapping):
        file: Any = plain(source)
        tree, folder, name, said = file, Path(), file.get("name") or "league", ""
    else:
        file = find_config(source, "leagues")
        tree, folder, name, said = read_yaml(file)[0], file.parent, file.stem, str(source)
    defaults = LeagueConfig(name=name, experiment=ExperimentConfig(name=name))
    if base := override_value(overrides, "base", tree.get("base")):
        defaults.experiment = load_base(folder, base)
    config = load_structured(file, defaults, overrides, said)
    if config.experiment.base:
        raise ConfigError(["experiment.base: a league names it at its top, as base"], said)
    return config


def load_resumed(file: Path, overrides: Overrides = ()) -> LeagueConfig:
    """Reads what `to_yaml` wrote, to go on with the league.

    Args:
        file: of the league's directory.
        overrides: more rounds, and what does not change those that it has; masked tokens are
            given here.

    Raises:
        ConfigError: it cannot be read, or an override would change what was played.
    """
    before = load_written(file, LeagueConfig)
    config = load_structured(file, LeagueConfig(), overrides, str(file))
    changed = [
        key
        for key in differences(asdict(before), asdict(config))
        if key not in _RESUMABLE and not key.endswith(".token")
    ]
    if changed:
        raise ConfigError(
            [
                f"{', '.join(sorted(changed))}: cannot change, since rounds were played as it was; "
                f"a league goes on with other {', '.join(_RESUMABLE)}"
            ],
            str(file),
        )
    if config.rounds < before.rounds:
        fewer = f"rounds: is {config.rounds}, and the league had {before.rounds}"
        raise ConfigError([f"{fewer}; it goes on with more, not with less"], str(file))
    return config
