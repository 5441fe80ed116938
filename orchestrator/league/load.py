"""A league's YAML and overrides to `LeagueConfig`, its base experiment filled in."""

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
    *("opponents.draw", "opponents.last"),  # of rounds to come
)


def load_league(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> LeagueConfig:
    """Reads a league.

    Args:
        source: a YAML file, or the bare name of a packaged league; or what such a file would say.
        overrides: on top of it, see `Overrides`.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations.
    """
    return load_on_base(source, "league", LeagueConfig, overrides)


def load_resumed_league(file: Path, overrides: Overrides = ()) -> LeagueConfig:
    """Reads what `to_yaml` wrote, to continue the league.

    Args:
        file: of the league's directory.
        overrides: more rounds, and what does not change those that it has; masked tokens are
            given here.

    Raises:
        ConfigError: it cannot be read, or an override would change what was played.
    """
    before = load_written(file, LeagueConfig)
    config = load_structured(file, LeagueConfig(), overrides, str(file))
    if changed := sorted(changes(before, config, _RESUMABLE)):
        raise ConfigError(
            [
                f"{', '.join(changed)}: cannot change, since rounds were played as it was; "
                f"a league goes on with other {', '.join(_RESUMABLE)}"
            ],
            str(file),
        )
    if config.rounds < before.rounds:
        fewer = f"rounds: is {config.rounds}, and the league had {before.rounds}"
        raise ConfigError([f"{fewer}; it goes on with more, not with less"], str(file))
    return config
