"""A tree merged into a config: what fits is taken, and each key that does not is described.

OmegaConf decides what fits the schema, and stops at the first mistake. So that all are reported,
the key that does not fit is found, described and taken out, and the rest is tried again.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.config.yaml_file import KeyPath, Tree, dotted, first_line
from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.config import ServerConfig

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
        misfits.append((path, _describe(path, _at(tree, path), error, schema)))
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


def _describe(path: KeyPath, value: Any, error: Exception | None, schema: type) -> str:
    hint: Any = schema
    for i, key in enumerate(path):
        if dataclasses.is_dataclass(hint):
            fields = typing.get_type_hints(hint)
            if key not in fields:
                return _unknown_key(path[:i], str(key), typing.cast(type, hint), schema)
            hint = fields[key]
        elif typing.get_origin(hint) is dict:
            if not isinstance(key, str):
                return f"{dotted(path)}: the key must be text, got {_kind(key)}"
            hint = typing.get_args(hint)[1]
        else:
            break
    else:
        return (
            f"{dotted(path)}: must be {_expected(hint)}, got {_kind(value)}{_remedy(hint, value)}"
        )
    return f"{dotted(path)}: {first_line(error)}"


def _unknown_key(parent: KeyPath, key: str, schema: type, root: type) -> str:
    names = [f.name for f in dataclasses.fields(schema)]
    hint = did_you_mean(key, names)
    if not hint:
        elsewhere = [p for p in _schema_paths(root) if p.split(".")[-1] == key]
        if elsewhere:
            hint = f"; it belongs at {' or '.join(elsewhere)}"
        elif issubclass(schema, ServerConfig):
            hint = f"; settings of the algorithm go under {dotted((*parent, 'settings'))}"
        else:
            hint = f"; known are {listed(names, 20)}"
    return f"{dotted((*parent, key))}: unknown key {key!r}{hint}"


def _schema_paths(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(schema).items():
        yield prefix + name
        inner, step = hint, f"{name}."
        if typing.get_origin(hint) is dict:
            inner, step = typing.get_args(hint)[1], f"{name}.NAME."
        if dataclasses.is_dataclass(inner):
            yield from _schema_paths(inner, prefix + step)


def _expected(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_expected(arg) for arg in args)
    if origin is list:
        inner = {str: "text", Any: "values"}.get(args[0])
        return f"a list of {inner or getattr(args[0], '__name__', 'mappings')}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a mapping of keys"
    names: dict[Any, str] = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "text",
        types.NoneType: "null",
    }
    return names.get(hint, str(hint))


def _kind(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"a mapping with the keys {listed(map(str, value))}" if value else "an empty mapping"
    if isinstance(value, list):
        return f"the list {str(value)[:60]}"
    return repr(value) if not isinstance(value, str) else f"the text {value[:60]!r}"


def _remedy(hint: Any, value: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, float) and value.is_integer() and (hint is int or int in args):
        return f"; write {int(value)}"
    if origin is list and isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"; write {json.dumps([value])}"
    if origin is Literal and isinstance(value, str):
        return did_you_mean(value, args)
    return ""
