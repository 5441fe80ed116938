"""Reads a league's YAML and overrides into a `LeagueConfig` with its base filled in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import Overrides
from muxrl.orchestrator.config.load import load_structured, load_written
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.league.schema import LeagueConfig
from muxrl.orchestrator.sweeps.load import changes, load_on_base

_RESUMABLE = (
    *("rounds", "max_concurrent", "address", "experiment.watch"),
    *("opponents.draw", "opponents.last"),  # for later rounds
)


def load_league(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> LeagueConfig:
    """Reads a league.

    Args:
        source: a YAML file, the bare name of a packaged league, or the content of such a file.
        overrides: replace values of the source; see `Overrides`.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations.
    """
    return load_on_base(source, "league", LeagueConfig, overrides)


def load_resumed_league(file: Path, overrides: Overrides = ()) -> LeagueConfig:
    """Reads the file that `to_yaml` wrote, to continue the league.

    Args:
        file: in the league's directory.
        overrides: more rounds, and keys that do not change the earlier rounds; masked tokens have
            to be given here.

    Raises:
        ConfigError: the file cannot be read, or an override would change played rounds.
    """
    before = load_written(file, LeagueConfig)
    config = load_structured(file, LeagueConfig(), overrides, str(file))
    if changed := sorted(changes(before, config, _RESUMABLE)):
        raise ConfigError(
            [
                f"{', '.join(changed)}: cannot change, since rounds were played with the former "
                f"value; what can change: {', '.join(_RESUMABLE)}"
            ],
            str(file),
        )
    if config.rounds < before.rounds:
        fewer = f"rounds: is {config.rounds}, but the league had {before.rounds}"
        raise ConfigError([f"{fewer}; it can only be resumed with more, not with less"], str(file))
    return config
