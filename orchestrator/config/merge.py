"""A YAML file as a tree, merged into a config: what fits is taken, the rest is described by key.

OmegaConf decides what fits the schema, and stops at the first mistake. So that all are reported,
the key that does not fit is found, described and taken out, and the rest is tried again.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.suggestions import did_you_mean, listed
from muxrl.servers.config import ServerConfig
from muxrl.servers.setting_values import misfit
from muxrl.servers.trainers.brought_settings import where_it_went

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
        root = _compose(text)
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


def _compose(text: str) -> yaml.Node | None:
    """By libyaml, which is fast; what it refuses the other parser says in more words."""
    try:
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.compose(text, Loader=yaml.SafeLoader)


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


def leaves(
    tree: Any, prefix: KeyPath = (), *, in_lists: bool = False
) -> Iterator[tuple[KeyPath, Any]]:
    """Yields path and value of each leaf of a tree; an empty mapping is one.

    Args:
        tree: mappings of mappings.
        prefix: before each path.
        in_lists: whether the items of lists are leaves, not the lists.
    """
    items: list[tuple[Any, Any]] = []
    if isinstance(tree, Mapping):
        items = list(tree.items())
    elif in_lists and isinstance(tree, list):
        items = list(enumerate(tree))
    for key, value in items:
        yield from leaves(value, (*prefix, key), in_lists=in_lists)
    if not items:
        yield prefix, tree


# What OmegaConf raises when a tree does not fit; TypeError for a list where a mapping is due.
MISFIT = (OmegaConfBaseException, TypeError, ValueError)


def merge(
    base: DictConfig, tree: Tree, schema: type
) -> tuple[DictConfig, list[tuple[KeyPath, str]]]:
    """Returns `base` with what fits of `tree`, and path and sentence of each key that does not."""
    misfits: list[tuple[KeyPath, str]] = []
    while True:
        merged, error = _try_merge(base, tree)
        if merged is not None:
            return merged, misfits
        path = _culprit(base, tree, ())
        if not path:
            return base, [*misfits, ((), first_line(error))]
        algorithm = _algorithm(base, tree, path[:-1])
        misfits.append((path, _describe(path, _at(tree, path), error, schema, algorithm)))
        parent = _at(tree, path[:-1])
        del parent[path[-1]]


def _try_merge(base: DictConfig, tree: Tree) -> tuple[DictConfig | None, Exception | None]:
    try:
        merged = OmegaConf.merge(base, OmegaConf.create(tree))
    except MISFIT as error:
        return None, error
    assert isinstance(merged, DictConfig)
    return merged, None


def _culprit(base: DictConfig, tree: Tree, prefix: KeyPath) -> KeyPath:
    """Returns the path of the first, deepest key that does not fit on its own; () if all do."""

    def fits(path: KeyPath, value: Any) -> bool:
        for key in reversed(path):
            value = {key: value}
        return _try_merge(base, value)[0] is not None

    for key, value in _at(tree, prefix).items():
        path = (*prefix, key)
        if not fits(path, value):
            # An unknown key is at fault itself, whatever is below it.
            has_inner = isinstance(value, dict) and fits(path, {})
            return (_culprit(base, tree, path) if has_inner else ()) or path
    return ()


def _at(tree: Tree, path: KeyPath) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _algorithm(base: DictConfig, tree: Tree, parent: KeyPath) -> str:
    """Returns the algorithm of the server whose key is at fault; "" if it is no server's."""
    of_base = OmegaConf.select(base, dotted((*parent, "algorithm")))
    return str(_at(tree, parent).get("algorithm", of_base or ""))


def _describe(
    path: KeyPath, value: Any, error: Exception | None, schema: type, algorithm: str
) -> str:
    hint: Any = schema
    for i, key in enumerate(path):
        if dataclasses.is_dataclass(hint):
            fields = typing.get_type_hints(hint)
            if key not in fields:
                of = typing.cast(type, hint)
                return _unknown_key(path[:i], str(key), of, schema, algorithm)
            hint = fields[key]
        elif typing.get_origin(hint) is dict:
            if not isinstance(key, str):
                return f"{dotted(path)}: the key {misfit(key, str)}"
            hint = typing.get_args(hint)[1]
        else:
            break
    else:
        return f"{dotted(path)}: {misfit(value, hint)}"
    return f"{dotted(path)}: {first_line(error)}"


def _unknown_key(parent: KeyPath, key: str, schema: type, root: type, algorithm: str) -> str:
    names = [f.name for f in dataclasses.fields(schema)]
    elsewhere = [p for p in _schema_paths(root) if p.split(".")[-1] == key]
    settings = _settings(parent, key, algorithm) if issubclass(schema, ServerConfig) else ""
    if elsewhere:
        hint = f"; it belongs at {' or '.join(elsewhere)}"
    elif found := settings or where_it_went(key, (), ()):
        hint = found
    elif similar := did_you_mean(key, names):
        hint = similar
    elif issubclass(schema, ServerConfig):
        hint = f"; settings of the algorithm go under {dotted((*parent, 'settings'))}"
    else:
        hint = f"; known are {listed(names, 20)}"
    return f"{dotted((*parent, key))}: unknown key {key!r}{hint}"


def _settings(parent: KeyPath, key: str, algorithm: str) -> str:
    """Returns where a server's key belongs, of whichever library it is; "": nobody knows."""
    from muxrl.servers.lookup import own_algorithms

    entry = next((one for one in own_algorithms() if one.name == algorithm.upper()), None)
    if entry is None:
        return where_it_went(key, (), ())
    at, known = dotted((*parent, "settings")), entry.settings()
    if key in known:
        return f"; it is a setting of {entry.name}, and belongs at {at}.{key}"
    return where_it_went(key, known, entry.model_settings(), at)


def _schema_paths(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(schema).items():
        yield prefix + name
        inner, step = hint, f"{name}."
        if typing.get_origin(hint) is dict:
            inner, step = typing.get_args(hint)[1], f"{name}.NAME."
        if dataclasses.is_dataclass(inner):
            yield from _schema_paths(inner, prefix + step)
