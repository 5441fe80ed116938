"""Reads a YAML file as a tree with the lines of its keys, and merges trees."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.errors import ConfigError

KeyPath = tuple[Any, ...]
"""Keys from the top down; the items of a list have integers."""
Tree = dict[str, Any]


def read_yaml(file: Path) -> tuple[Tree, dict[KeyPath, int]]:
    """Returns a file's tree, interpolations untouched, and the line of each of its keys.

    Raises:
        ConfigError: the file cannot be read as text, is not YAML, or holds no mapping.
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
    """Parses with libyaml, which is fast; the slow parser explains errors in more words."""
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
    began = (
        f" (in what begins in line {start.line + 1})" if start and start.line < mark.line else ""
    )
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {what}{began}"


def grammar_problem(error: OmegaConfBaseException) -> str:
    """Returns what is wrong with an interpolation."""
    where = f"{error.full_key}: " if error.full_key else ""
    return f"{where}broken interpolation: {first_line(error)}"


def first_line(error: BaseException | None) -> str:
    """Returns the first line of an error's text, or its class's name if it has no text."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def dotted(path: KeyPath) -> str:
    """Returns a path as it is written: ``servers.qmix.port``."""
    return ".".join(map(str, path))


def leaves(
    tree: Any, prefix: KeyPath = (), *, in_lists: bool = False
) -> Iterator[tuple[KeyPath, Any]]:
    """Yields path and value of each leaf of a tree; an empty mapping is a leaf.

    Args:
        tree: mappings of mappings.
        prefix: is put before each path.
        in_lists: whether the items of lists are leaves, rather than whole lists.
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


def flat(config: Any) -> dict[str, Any]:
    """Returns the values of a tree or dataclass by dotted key, without empty mappings."""
    tree = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    return {dotted(p): v for p, v in leaves(tree) if not isinstance(v, Mapping)}


def diff(ours: Any, theirs: Any) -> list[str]:
    """Returns the dotted keys in which two trees or dataclasses differ; null equals absent."""
    one, other = flat(ours), flat(theirs)
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def merged(base: Tree, tree: Tree, *, clears: bool = True) -> Tree:
    """Returns a tree with another tree merged on top of it.

    If a key of the base is an interpolation that leads to a mapping, only the copy of the mapping
    under this key is changed.

    Args:
        base, tree: mappings of mappings.
        clears: whether an empty mapping clears the mapping below it.
    """

    def put(below: Any, above: Any, path: KeyPath) -> Any:
        if isinstance(below, str) and "${" in below and isinstance(above, Mapping):
            with contextlib.suppress(OmegaConfBaseException, TypeError, ValueError):
                below = resolved(OmegaConf.create(base), path)
        if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
            return above
        if not above and path and clears:
            return above
        changed = {k: put(below.get(k), value, (*path, k)) for k, value in above.items()}
        return {**below, **changed}

    return typing.cast(Tree, put(base, tree, ()))


def resolved(root: Any, path: KeyPath) -> Any:
    """Returns the value at a path of an OmegaConf config, as plain data.

    Raises:
        OmegaConfBaseException, ValueError, TypeError: an interpolation leads nowhere.
    """
    node = root
    for key in path:
        node = node[key]
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
