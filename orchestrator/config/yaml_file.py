"""A YAML file as a tree, with the line of each key, and what is wrong where it is not YAML."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.errors import ConfigError

KeyPath = tuple[Any, ...]
"""Keys from the top down; those of lists are integers."""
Tree = dict[str, Any]


def read_yaml(file: Path) -> tuple[Tree, dict[KeyPath, int]]:
    """Returns a file's tree, interpolations untouched, and the line of each of its keys.

    Raises:
        ConfigError: it cannot be read as text, is not YAML, or holds no mapping.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"cannot be read as text: {error}"], str(file)) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and not isinstance(root, yaml.MappingNode):
            what = "a list" if isinstance(root, yaml.SequenceNode) else "one value"
            raise ConfigError([f"holds {what}; a config is a mapping of keys"], str(file))
        tree = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_yaml_problem(error)], str(file)) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"not YAML: {first_line(error)}"], str(file)) from error
    except OmegaConfBaseException as error:
        raise ConfigError([grammar_problem(error)], str(file)) from error
    return typing.cast(Tree, tree), dict(_key_lines(root))


def _key_lines(node: yaml.Node | None, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*prefix, str(key.value))
            yield path, key.start_mark.line + 1
            yield from _key_lines(value, path)


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "broken syntax"
    if "tab character" in what or "'\\t'" in what:
        what += "; indent with spaces"
    if not mark:
        return f"not YAML: {what}"
    start = error.context_mark
    began = f" (what began in line {start.line + 1})" if start and start.line < mark.line else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {what}{began}"


def grammar_problem(error: OmegaConfBaseException) -> str:
    """Returns what is wrong with an interpolation."""
    where = f"{error.full_key}: " if error.full_key else ""
    return f"{where}broken interpolation: {first_line(error)}"


def first_line(error: BaseException | None) -> str:
    """Returns the first line of an error's text, its class where it has none."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def dotted(path: KeyPath) -> str:
    """Returns a path as it is written: ``servers.qmix.port``."""
    return ".".join(map(str, path))
