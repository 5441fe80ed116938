"""Reads a sweep's YAML and overrides into a `SweepConfig`, with its base experiment filled in."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from muxrl.orchestrator.config import ExperimentConfig, find_config
from muxrl.orchestrator.config.load import load_base, load_structured, load_written
from muxrl.orchestrator.config.merge import diff, read_yaml
from muxrl.orchestrator.config.overrides import Overrides, override_value, plain
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.servers.declared import use_of

_RESUMABLE = ("max_concurrent", "report_interval_s", "address")
"""Keys that change how trials are run, but not which trials."""
_BUDGET = tuple(f"experiment.stop.{key}" for key in ("env_steps", "time_s", "iterations"))


class _OnBase(Protocol):
    experiment: ExperimentConfig


C = TypeVar("C", bound=_OnBase)


def load_sweep(
    source: str | Path | Mapping[str, Any] | SweepConfig, overrides: Overrides = ()
) -> SweepConfig:
    """Reads a sweep.

    Args:
        source: a YAML file, the bare name of a packaged sweep, or the content of such a file.
        overrides: replace values of the source, see `Overrides`; keys of the experiment begin with
            `experiment.`.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations, of
            the sweep or of the experiment it is based on.
    """
    if isinstance(source, SweepConfig) and source.base:
        if source.experiment != ExperimentConfig():
            raise ConfigError(
                [
                    "base: cannot be combined with an experiment in a SweepConfig; give one of the "
                    "two, or a mapping"
                ]
            )
        source = {k: v for k, v in plain(source).items() if k != "experiment"}
    return load_on_base(source, "sweep", SweepConfig, overrides)


def load_on_base(source: Any, kind: str, schema: Callable[..., C], overrides: Overrides) -> C:
    """Reads a sweep or a league, and merges its experiment onto the one that it names as `base`.

    Args:
        source: a YAML file, the bare name of a packaged one, or the content of such a file.
        kind: "sweep" or "league".
        schema: the class that declares its keys.
        overrides: replace values of the source; see `Overrides`.

    Raises:
        ConfigError: see `load_sweep`.
    """
    if isinstance(source, str | Path):
        file = find_config(source, f"{kind}s")
        tree, folder, name, label = read_yaml(file)[0], file.parent, file.stem, str(source)
    else:
        file = tree = plain(source)
        folder, name, label = Path(), tree.get("name") or kind, ""
        tree["name"] = name
    defaults = schema(name=name, experiment=ExperimentConfig(name=name))
    if base := override_value(overrides, "base", tree.get("base")):
        defaults.experiment = load_base(folder, base)
    config = load_structured(file, defaults, overrides, label)
    if config.experiment.base:
        raise ConfigError(
            [
                f"experiment.base: is not read here; a {kind} names it as base, at the top of its "
                "file"
            ],
            label,
        )
    config.experiment.name = config.experiment.name or name
    return config


def load_resumed(file: Path, overrides: Overrides = ()) -> SweepConfig:
    """Reads the file that `to_yaml` wrote, to resume the sweep.

    Args:
        file: in the sweep's directory.
        overrides: more seeds or samples, a larger budget, and keys that do not change the trials;
            masked tokens have to be given here.

    Raises:
        ConfigError: the file cannot be read, or an override would change the sweep's trials.
    """
    before = load_written(file, SweepConfig)
    config = load_structured(file, SweepConfig(), overrides, str(file))
    changed = list(changes(before, config, _RESUMABLE))
    fixed = [key for key in changed if key not in (*_BUDGET, "seeds", "num_samples")]
    problems: list[str] = []
    if fixed:
        problems.append(
            f"{', '.join(fixed)}: cannot change, since the sweep has trials with the former value. "
            f"Make a second sweep, 'muxrl sweep {file} {fixed[0]}=...', and compare both, "
            f"'muxrl compare {file.parent} SECOND'. What can change: more seeds, a larger "
            f"num_samples or {', '.join(_BUDGET)}, and any {', '.join(_RESUMABLE)}"
        )
    if "seeds" in changed:
        had = [seed for seed in before.all_seeds if seed not in config.all_seeds]
        if had:
            problems.append(
                f"seeds: the sweep already has trials with {had}; list old and new seeds"
            )
    for key in changed:
        if key in (*_BUDGET, "num_samples"):
            was, now = map(operator.attrgetter(key), (before, config))
            if now is not None and (was is None or now < was):
                problems.append(
                    f"{key}: is {now}, but the sweep had {'no such limit' if was is None else was}"
                    "; a sweep can only be resumed with more, not with less"
                )
    if problems:
        raise ConfigError(problems, str(file))
    return config


def changes(before: Any, now: Any, free: Sequence[str]) -> Iterator[str]:
    """Yields the keys in which two configs differ, except for tokens and the keys in `free`."""
    for key in diff(before, now):
        if key not in free and not use_of(type(before), key.split(".")).is_secret:
            yield key
