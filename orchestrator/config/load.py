"""Reads YAML and ``key=value`` overrides into dataclasses, and writes dataclasses as YAML.

Every mistake is named by its key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.config.merge import (
    KeyPath,
    Tree,
    first_line,
    leaves,
    merged,
    read_yaml,
)
from muxrl.orchestrator.config.overrides import (
    Overrides,
    nested,
    override_value,
    parsed,
    plain,
    sets,
)
from muxrl.orchestrator.config.reading import Reading
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.run_messages import TOKEN
from muxrl.protocol.suggestions import did_you_mean, listed
from muxrl.servers.declared import use_of

ConfigSource = str | Path | Mapping[str, Any] | ExperimentConfig
"""A file, a packaged config's name, or the same content as a nested mapping or a dataclass.

Mappings may hold dataclasses and classes."""

T = TypeVar("T")

_OF_SWEEPS = frozenset(
    ("experiment", "roles", "algorithms", "assignments", "parameters", "seeds", "num_samples",
     "metric", "scheduler", "searcher", "max_concurrent", "report_interval_s", "callbacks",
     "calibration_s", "sweeps_dir")
)  # fmt: skip
"""Keys by which a file is recognised as a sweep, since no experiment has them."""
BENCHMARK = "benchmark"
"""The folder of tasks with stored results, and the prefix of their names."""


def packaged_configs(kind: str = "conf") -> dict[str, Path]:
    """Returns the configs that come with muxrl, by bare name.

    Args:
        kind: "conf" for experiments, "sweeps" or "leagues".
    """
    folder = Path(str(resources.files("muxrl.experiments")))
    found = {path.stem: path for path in sorted((folder / kind).glob("*.yaml"))}
    tasks = sorted((folder / BENCHMARK / kind).glob("*.yaml"))
    return {**found, **{f"{BENCHMARK}/{path.stem}": path for path in tasks}}


def find_config(name: str | Path, kind: str = "conf") -> Path:
    """Returns the file that a path, or the bare name of a packaged config, leads to.

    Args:
        name: as the user gives it.
        kind: of config; see `packaged_configs`.

    Raises:
        ConfigError: there is no such file.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = packaged_configs(kind)
    if str(name) in packaged:
        return packaged[str(name)]
    if not str(name):
        raise ConfigError(
            ["the name of the config is empty; give a file, or a mapping with a whole config"]
        )
    if path.is_dir():
        raise ConfigError(["this is a directory, not a YAML file"], str(name))
    near = {p.name for p in path.parent.glob("*.y*ml")} if path.parent.is_dir() else set()
    hint = did_you_mean(path.name, near) or did_you_mean(path.stem, packaged)
    if not path.parent.is_dir():
        hint = hint or f"; the directory {str(path.parent)!r} does not exist"
    what = "configs" if kind == "conf" else kind
    hint = hint or f"; packaged {what} are {listed(packaged)}"
    raise ConfigError([f"no such file{hint}"], str(name))


def is_sweep(name: str | Path) -> bool:
    """Whether a path, or the bare name of a packaged config, leads to a sweep.

    False for what is neither.

    Raises:
        ConfigError: the file is not YAML.
    """
    path = Path(name)
    if path.is_file():
        keys = read_yaml(path)[0].keys()
        return not keys & {"simulation", "members"} and not _OF_SWEEPS.isdisjoint(keys)
    return str(name) in packaged_configs("sweeps") and str(name) not in packaged_configs()


def is_league(name: str | Path) -> bool:
    """Whether a path, or the bare name of a packaged config, leads to a league.

    Raises:
        ConfigError: the file is not YAML.
    """
    path = Path(name)
    if path.is_file():
        return "members" in read_yaml(path)[0]
    return str(name) in packaged_configs("leagues").keys() - packaged_configs().keys()


def load_config(source: ConfigSource, overrides: Overrides = ()) -> ExperimentConfig:
    """Reads an experiment.

    Args:
        source: a YAML file, the bare name of a packaged config, or the content of such a file; see
            `plain`.
        overrides: replace values of the source; see `Overrides`.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations; or
            a file that is missing or is not YAML. `muxrl.orchestrator.config.resolve` checks
            whether the experiment makes sense.
    """
    if isinstance(source, str | Path):
        return _load_file(source, overrides, ())
    if isinstance(source, ExperimentConfig) and source.base:
        raise ConfigError(
            ["base: is for files and mappings; an ExperimentConfig has a value for every key"]
        )
    tree = plain(source)
    defaults = load_base(Path(), override_value(overrides, "base", tree.get("base")))
    config = load_structured(tree, replace(defaults, name=""), overrides)
    return replace(config, name=config.name or "experiment", base="")


def load_base(folder: Path, base: Any, above: tuple[Path, ...] = ()) -> ExperimentConfig:
    """Reads the experiment that a config's key `base` names.

    Args:
        folder: of the config.
        base: the key's value; the defaults are returned if it is empty or no text.
        above: the files that are based on this one.

    Raises:
        ConfigError: as for `load_config`; or the base is one of the files above.
    """
    if not isinstance(base, str) or not base:  # another type is an error of the config itself
        return ExperimentConfig()
    sibling = folder / base
    return _load_file(sibling if sibling.is_file() else base, (), above)


def _load_file(
    source: str | Path, overrides: Overrides, above: tuple[Path, ...]
) -> ExperimentConfig:
    if is_sweep(source):
        how = f"see what it would run with 'muxrl sweep {source} --dry-run', and run it with"
        problem = f"this is a sweep, a table of runs; {how} 'muxrl sweep {source}'"
        raise ConfigError([problem], str(source))
    if is_league(source):
        raise ConfigError([f"this is a league; run it with 'muxrl league {source}'"], str(source))
    file = find_config(source)
    if file.resolve() in above:
        files = " on ".join(str(path) for path in (*above, file.resolve()))
        raise ConfigError([f"base: the experiment is based on itself: {files}"], str(source))
    base = override_value(overrides, "base", read_yaml(file)[0].get("base"))
    defaults = load_base(file.parent, base, (*above, file.resolve()))
    config = load_structured(file, replace(defaults, name=file.stem), overrides, str(source))
    return replace(config, base="")


def load_structured(
    file: Path | Tree, defaults: T, overrides: Overrides = (), source: str = ""
) -> T:
    """Reads a file into an object of the same dataclass as the defaults.

    Args:
        file: a YAML file, or its content.
        defaults: the values of keys that the file does not give.
        overrides: replace values of the file; see `Overrides`.
        source: what the user calls the file, for the message.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations; or
            the file cannot be read.
    """
    tree, lines = read_yaml(file) if isinstance(file, Path) else (file, {})
    given = list(parsed(overrides))
    tree = merged(asdict(defaults), tree)  # type: ignore[call-overload]
    for _, override in given:
        tree = merged(tree, override) if isinstance(override, dict) else tree
    reading = Reading(tree, type(defaults))
    of_file: list[tuple[int, str]] = []
    of_overrides: list[str] = []
    for path, sentence in reading.mismatches.items():
        texts = [text for text, override in given if sets(override, path)]
        line = _line(lines, path)
        if texts:
            of_overrides.append(f"override {texts[-1]!r}: {sentence}")
        else:
            of_file.append((line, f"line {line}: {sentence}" if line else sentence))
    of_overrides += [f"override {text!r}: {t}" for text, t in given if not isinstance(t, dict)]
    if of_file or of_overrides:
        in_order = [text for _, text in sorted(of_file, key=itemgetter(0))]
        raise ConfigError(in_order + of_overrides, source)
    return reading.config


def set_values(config: T, values: Mapping[str, Any]) -> tuple[T, list[str]]:
    """Returns a copy of a config with some values replaced, and a sentence for each misfit.

    Without values the config itself is returned.

    Args:
        config: a dataclass of a schema.
        values: by key path, such as ``"servers.qmix.settings.lr"``; a mapping is merged into the
            one that is there, and an empty mapping clears it.
    """
    if not values:
        return config, []
    tree = asdict(config)  # type: ignore[call-overload]
    for key_path, value in values.items():
        tree = merged(tree, nested(key_path.split("."), value))
    reading = Reading(tree, type(config))
    return reading.config, [*reading.mismatches.values()]


def _line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Returns the line of a key, or of the list in which an item stands; 0 if it has none."""
    parents = (tuple(map(str, path[:length])) for length in range(len(path), 0, -1))
    return next((lines[parent] for parent in parents if parent in lines), 0)


def to_yaml(config: Any) -> str:
    """Returns every setting of an experiment, sweep or league, defaults and base included.

    The text is kept, so tokens are masked. A token that equals the environment's MUXRL_TOKEN
    becomes a reference to that variable. Any other becomes OmegaConf's "to be filled in", so that
    a launch from this text reports it instead of listening with a token that everybody knows.
    """
    masked = asdict(config)
    for path, token in secrets(masked, type(config)).items():
        is_known = token == os.environ.get(TOKEN)
        _set_token(masked, path, f"${{oc.env:{TOKEN}}}" if is_known else "???")
    return OmegaConf.to_yaml(OmegaConf.create({**masked, "base": ""}))


def load_written(file: Path, schema: type[T]) -> T:
    """Reads a file that `to_yaml` wrote; masked tokens are empty.

    For whoever reads results, and starts nothing.

    Raises:
        ConfigError: the file cannot be read, or another version of muxrl wrote it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"it cannot be read: {first_line(error)}"], str(file)) from error
    return read_written(text, schema, str(file))


def read_written(text: str, schema: type[T], source: str = "") -> T:
    """Reads a text that `to_yaml` wrote; masked tokens are empty.

    Args:
        text: all of it.
        schema: the dataclass that was written.
        source: where the text came from, for the message.

    Raises:
        ConfigError: the text is not YAML, or another version of muxrl wrote it.
    """
    try:
        tree: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        for path in secrets(tree, schema):
            _set_token(tree, path, "")
        reading = Reading(tree, schema)
        problem = next(iter(reading.mismatches.values()), "")
    except (OmegaConfBaseException, AttributeError, ValueError, yaml.YAMLError) as error:
        problem = first_line(error)
    if problem:
        problem = f"its config.yaml cannot be read: {problem}"
        raise ConfigError([f"{problem}; was it written by another version?"], source)
    return reading.config


def secrets(tree: Tree, schema: type) -> dict[KeyPath, str]:
    """Returns by path the values of an experiment, sweep or league that are never written down."""
    stated = leaves(tree)
    return {path: value for path, value in stated if value and use_of(schema, path).is_secret}


def _set_token(tree: Tree, path: KeyPath, token: str) -> None:
    inner: Any = tree
    for key in path[:-1]:
        inner = inner[key]
    inner["token"] = token


def from_yaml(text: str, source: str = "") -> ExperimentConfig:
    """Returns the experiment that `to_yaml` wrote; see `read_written`."""
    return read_written(text, ExperimentConfig, source)
