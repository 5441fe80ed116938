"""Values that replace those of a file: ``key.path=value`` items, or values by key path.

An empty mapping clears the mapping below it, just as an empty mapping in a file clears that of its
base: ``servers.ppo.settings={}`` restores the algorithm's own settings, and ``{"stop": {}}`` the
defaults of a section.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.config.merge import KeyPath, Tree, dotted, grammar_problem, leaves
from muxrl.orchestrator.errors import ConfigError
from muxrl.servers.import_by_name import CannotImport, name_of

Overrides = Sequence[str] | Mapping[str, Any]
"""``["stop.env_steps=9000"]``, each value YAML; or ``{"stop.env_steps": 9000}``, which may be
nested: ``{"stop": {"env_steps": 9000}}``. Later ones win."""


def override_value(overrides: Overrides, key: str, default: Any) -> Any:
    """Returns the value that the last override of a top-level key gives, or the default.

    Raises:
        TypeError: the overrides are one text.
    """
    for _, tree in parsed(overrides):
        if isinstance(tree, dict):
            default = tree.get(key, default)
    return default


def sets(override: Tree | str, path: KeyPath) -> bool:
    """Returns whether an override, as `parsed` yields it, gives a key, or one below or above it."""
    if isinstance(override, str):
        return False
    keys = [given for given, _ in leaves(override)]
    return any(given[: len(path)] == path[: len(given)] for given in keys)


def nested(keys: Sequence[str], value: Any) -> Tree:
    """Returns a tree that has the value at this path of keys."""
    value = plain(value, tuple(keys))
    for key in reversed(keys):
        value = {key: value}
    return typing.cast(Tree, value)


def plain(value: Any, path: KeyPath = ()) -> Any:
    """Returns a copy of Python values that YAML can hold.

    Dataclasses become mappings; classes and functions become the names by which they are imported;
    paths become text; NumPy's arrays and numbers become lists and Python's numbers.

    Args:
        value: a config, or a part of one.
        path: where it stands, for the message.

    Raises:
        ConfigError: a class or function cannot be imported by another process, an object is none of
            the above, or a whole config is no mapping.
    """
    if not path and not (isinstance(value, Mapping) or dataclasses.is_dataclass(value)):
        raise ConfigError([f"a config is a file's name, a mapping or a dataclass, not {value!r}"])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, path) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist") and not isinstance(value, type):  # NumPy's
        return value.tolist()
    if callable(value):
        try:
            return name_of(value)
        except CannotImport as error:
            raise ConfigError([f"{dotted(path)}: {error}"]) from error
    if not isinstance(value, str | int | float | bytes | None):
        raise ConfigError([f"{dotted(path)}: {value!r} cannot be written as YAML"])
    return value


def parsed(overrides: Overrides) -> Iterator[tuple[str, Tree | str]]:
    """Yields each override as the user wrote it, with its tree, or what is wrong with it."""
    if isinstance(overrides, str):
        raise TypeError(
            f"overrides are {overrides!r}, one text; expected a list of 'key.path=value', or a "
            "mapping of key paths to values"
        )
    if isinstance(overrides, Mapping):
        for key_path, value in overrides.items():
            keys = str(key_path).split(".")
            is_path = isinstance(key_path, str) and all(keys)
            yield f"{key_path}={value}", nested(keys, value) if is_path else "must have a key.path"
        return
    for text in overrides:
        yield text, _read(text)


def _read(text: str) -> Tree | str:
    key, equals, _ = text.partition("=")
    if not equals or not all(key.split(".")):
        return "must look like key.path=value"
    try:
        tree = OmegaConf.to_container(OmegaConf.from_dotlist([text]), resolve=False)
    except yaml.YAMLError as error:
        return f"the value is not YAML: {getattr(error, 'problem', None) or error}"
    except OmegaConfBaseException as error:
        return grammar_problem(error)
    return typing.cast(Tree, tree)
