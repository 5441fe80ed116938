"""YAML and ``key=value`` overrides to dataclasses, with every mistake named by its key.

OmegaConf decides what fits the schema. It stops at the first mistake; so that all are reported,
the key that does not fit is found, described, taken out, and the rest is tried again.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.config import ServerConfig

KeyPath = tuple[Any, ...]
"""Keys from the top down; those of lists are integers."""
Tree = dict[str, Any]
T = TypeVar("T")

# What OmegaConf raises when a tree does not fit; TypeError for a list where a mapping is due.
_MISFIT = (OmegaConfBaseException, TypeError, ValueError)


def packaged_configs(kind: str = "conf") -> dict[str, Path]:
    """Returns the configs that come with muxrl, by bare name; `kind` "sweeps" for the sweeps."""
    folder = Path(str(resources.files("muxrl.experiments") / kind))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str | Path, kind: str = "conf") -> Path:
    """Returns the file that a path or the bare name of a packaged config stands for.

    Args:
        name: as the user gives it.
        kind: as for `packaged_configs`.

    Raises:
        ConfigError: there is no such file.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = packaged_configs(kind)
    if str(name) in packaged:
        return packaged[str(name)]
    if path.is_dir():
        raise ConfigError(["this is a directory, not a YAML file"], str(name))
    near = {p.name for p in path.parent.glob("*.y*ml")} if path.parent.is_dir() else set()
    hint = did_you_mean(path.name, near) or did_you_mean(path.stem, packaged)
    if not path.parent.is_dir():
        hint = hint or f"; the directory {str(path.parent)!r} does not exist"
    what = "configs" if kind == "conf" else kind
    hint = hint or f"; packaged {what} are {listed(packaged)}"
    raise ConfigError([f"no such file{hint}"], str(name))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads an experiment.

    Args:
        path: a YAML file, or the bare name of a packaged config.
        overrides: ``key.path=value`` items, later ones win; values are YAML.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations; or
            a file that is missing or is not YAML. Whether the experiment makes sense is not
            looked at here, see `muxrl.orchestrator.config.resolve`.
    """
    file = find_config(path)
    return load_structured(file, ExperimentConfig(name=file.stem), overrides, str(path))


def load_structured(file: Path, defaults: T, overrides: Sequence[str] = (), source: str = "") -> T:
    """Reads a file into the dataclass that its defaults are of.

    Args:
        file: YAML.
        defaults: what holds where the file says nothing.
        overrides: ``key.path=value`` items, later ones win; values are YAML.
        source: what the user calls the file, for the message.

    Raises:
        ConfigError: with all unknown keys, values of a wrong type and broken interpolations; or
            the file cannot be read.
    """
    raw, lines = read_yaml(file)
    schema = type(defaults)
    problems: list[str] = []
    config = OmegaConf.structured(defaults)
    open_keys = [path for path, value in _leaves(raw) if value == "???"]
    config, misfits = _merge(config, raw, schema)
    of_overrides: list[str] = []
    for override in overrides:
        config, sentences = _override(config, override, schema)
        of_overrides += [f"override {override!r}: {sentence}" for sentence in sentences]
    given = {override.partition("=")[0] for override in overrides}
    misfits += [
        (path, f"{_dotted(path)}: is left open (???)")
        for path in open_keys
        if _dotted(path) not in given
    ]
    problems += [_placed(lines, key_path, sentence) for key_path, sentence in misfits]
    problems += of_overrides
    problems += [_placed(lines, key_path, sentence) for key_path, sentence in _unresolved(config)]
    if problems:
        raise ConfigError(problems, source)
    try:
        loaded = OmegaConf.to_object(config)
    except _MISFIT as error:
        raise ConfigError([_first_line(error)], source) from error
    assert isinstance(loaded, schema)
    return loaded


def set_values(config: T, values: Mapping[str, Any]) -> tuple[T, list[str]]:
    """Returns a config with some values replaced, and a sentence for each misfit.

    It is a copy, but where there are no values.

    Args:
        config: a dataclass of a schema.
        values: key path, such as ``"servers.qmix.settings.lr"``, to its value; a mapping goes on
            top of what is there.
    """
    if not values:
        return config, []
    tree = OmegaConf.structured(config)
    sentences: list[str] = []
    for dotted, value in values.items():
        keys = dotted.split(".")
        nested: Tree = {keys[-1]: value}
        for key in reversed(keys[:-1]):
            nested = {key: nested}
        tree, misfits = _merge(tree, nested, type(config))
        sentences += [sentence for _, sentence in misfits]
    loaded = OmegaConf.to_object(tree)
    assert isinstance(loaded, type(config))
    return loaded, sentences


def _placed(lines: dict[KeyPath, int], path: KeyPath, sentence: str) -> str:
    """Puts the line of the key before the sentence, for an item of a list that of the list."""
    for length in range(len(path), 0, -1):
        line = lines.get(tuple(map(str, path[:length])))
        if line is not None:
            return f"line {line}: {sentence}"
    return sentence


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
        raise ConfigError([f"not YAML: {_first_line(error)}"], str(file)) from error
    except OmegaConfBaseException as error:
        raise ConfigError([_grammar_problem(error)], str(file)) from error
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


def _grammar_problem(error: OmegaConfBaseException) -> str:
    where = f"{error.full_key}: " if error.full_key else ""
    return f"{where}broken interpolation: {_first_line(error)}"


def _override(config: DictConfig, override: str, schema: type) -> tuple[DictConfig, list[str]]:
    key, equals, _ = override.partition("=")
    if not equals or not all(key.split(".")):
        return config, ["must look like key.path=value"]
    try:
        tree = OmegaConf.to_container(OmegaConf.from_dotlist([override]), resolve=False)
    except yaml.YAMLError as error:
        return config, [f"the value is not YAML: {getattr(error, 'problem', None) or error}"]
    except OmegaConfBaseException as error:
        return config, [_grammar_problem(error)]
    assert isinstance(tree, dict)
    config, misfits = _merge(config, typing.cast(Tree, tree), schema)
    return config, [sentence for _, sentence in misfits]


def _merge(
    base: DictConfig, tree: Tree, schema: type
) -> tuple[DictConfig, list[tuple[KeyPath, str]]]:
    """Returns `base` with all of `tree` that fits, and path and sentence of what does not."""
    misfits: list[tuple[KeyPath, str]] = []
    while True:
        merged, error = _try_merge(base, tree)
        if merged is not None:
            return merged, misfits
        path = _culprit(base, tree, ())
        if not path:
            return base, [*misfits, ((), _first_line(error))]
        misfits.append((path, _describe(path, _at(tree, path), error, schema)))
        parent = _at(tree, path[:-1])
        del parent[path[-1]]


def _try_merge(base: DictConfig, tree: Tree) -> tuple[DictConfig | None, Exception | None]:
    try:
        merged = OmegaConf.merge(base, OmegaConf.create(tree))
    except _MISFIT as error:
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
            # An unknown key is at fault itself, whatever it holds.
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
                return f"{_dotted(path)}: the key must be text, got {_kind(key)}"
            hint = typing.get_args(hint)[1]
        else:
            break
    else:
        return (
            f"{_dotted(path)}: must be {_expected(hint)}, got {_kind(value)}{_remedy(hint, value)}"
        )
    return f"{_dotted(path)}: {_first_line(error)}"


def _unknown_key(parent: KeyPath, key: str, schema: type, root: type) -> str:
    names = [f.name for f in dataclasses.fields(schema)]
    hint = did_you_mean(key, names)
    if not hint:
        elsewhere = [p for p in _schema_paths(root) if p.split(".")[-1] == key]
        if elsewhere:
            hint = f"; it belongs at {' or '.join(elsewhere)}"
        elif issubclass(schema, ServerConfig):
            hint = f"; settings of the algorithm go under {_dotted((*parent, 'settings'))}"
        else:
            hint = f"; known are {listed(names, 20)}"
    return f"{_dotted((*parent, key))}: unknown key {key!r}{hint}"


def _schema_paths(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(schema).items():
        yield prefix + name
        inner, step = hint, f"{name}."
        if typing.get_origin(hint) is dict:
            inner, step = typing.get_args(hint)[1], f"{name}.NAME."
        if dataclasses.is_dataclass(inner):
            yield from _schema_paths(inner, prefix + step)


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


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


def _unresolved(config: DictConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yields path and sentence of each interpolation that leads nowhere."""
    for path, value in _leaves(OmegaConf.to_container(config, resolve=False)):
        if isinstance(value, str) and "${" in value:
            try:
                node: Any = config
                for key in path:
                    node = node[key]
                if OmegaConf.is_config(node):
                    OmegaConf.to_container(node, resolve=True)
            except _MISFIT as error:
                reason = _first_line(error)
                yield path, f"{_dotted(path)}: {reason[:1].lower()}{reason[1:]}, in {value!r}"


def _leaves(node: Any, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(value, (*prefix, key))
    else:
        yield prefix, node


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
