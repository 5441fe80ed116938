"""Makes JSON Schemas of experiments, sweeps and leagues from the classes that read their YAML.

    python -m muxrl.orchestrator.json_schema

Writes experiments/schemas, which editors read; a test compares them. A schema covers what one file
alone shows: keys, types, choices, and the settings of an algorithm that the server names.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.league.schema import LeagueConfig
from muxrl.orchestrator.sweeps.schema import AlgorithmTemplate, SweepConfig
from muxrl.servers.config import ServerConfig
from muxrl.servers.declared import Check, KeysOf, bare, hints_of, meanings, metadata
from muxrl.servers.fixed_policies import FIXED
from muxrl.servers.lookup import own_algorithms
from muxrl.servers.trainers.declared_settings import MODEL, Settings
from muxrl.servers.trainers.lookup import registered

FOLDER = Path(__file__).resolve().parents[1] / "experiments" / "schemas"
KINDS: dict[str, type] = {
    "experiment": ExperimentConfig,
    "sweep": SweepConfig,
    "league": LeagueConfig,
}

Schema = dict[str, Any]
_LATER = r"\$\{|^\?\?\?$"
"""Matches an interpolation, or a value that is left open."""
_TYPES: dict[Any, list[str]] = {
    int: ["integer"],
    float: ["number"],
    bool: ["boolean"],
    types.NoneType: ["null"],
    list: ["array"],
    dict: ["object"],
    tuple: ["array"],
}


def schema_text(kind: str, *, installed: bool = True) -> str:
    """Returns the schema of "experiment", "sweep" or "league", as JSON.

    Args:
        kind: of config.
        installed: whether to include trainers that other packages than muxrl have registered.
    """
    root = KINDS[kind]
    definitions: dict[str, Schema] = {}
    names = [*(e.name for e in own_algorithms()), *(f.name for f in FIXED)]
    entries = registered().items()
    trainers = {n for n, path in entries if installed or path.startswith("muxrl.")} - {*names}
    definitions["algorithm"] = {
        "anyOf": [
            {"enum": [*names, *sorted(trainers)]},
            # A name in another case, and the import path of a user's own algorithm.
            {"type": "string", "pattern": f"{_in_any_case(names)}|^$|:|{_LATER}"},
        ]
    }
    for entry in own_algorithms():
        made = entry.settings_class()
        definitions[f"settings of {entry.name}"] = _settings(made)
        model = getattr(made, MODEL, None)
        definitions[f"model of {entry.name}"] = _ref(type(model).__name__)
        definitions[type(model).__name__] = _settings(model)  # several have the same
    for fixed in FIXED:
        own = {name: _of(kind, {}) for name, kind in fixed().kinds().items()}
        definitions[f"settings of {fixed.name}"] = _object(own)
    _define(root, definitions)
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"muxrl: {kind}"}
    whole = {**head, **_ref(root.__name__), "definitions": definitions}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _settings(made: Settings | None) -> Schema:
    """Returns the schema of the settings that a user may give; None: there are none."""
    if made is None:
        return _object({})
    cls: Any = type(made)
    known, meaning_of = cls.known(), meanings(cls)
    return _object({n: _of(known[n], {}) | {"description": meaning_of[n]} for n in sorted(known)})


def _define(cls: type, definitions: dict[str, Schema]) -> None:
    """Adds the schema of a dataclass, and of the dataclasses inside it."""
    definitions[cls.__name__] = schema = _object({})
    schema["description"] = inspect.getdoc(cls)
    for field in dataclasses.fields(cls):
        value = _of(hints_of(cls)[field.name], definitions)
        if (cls, field.name) in ((ServerConfig, "algorithm"), (AlgorithmTemplate, "algorithm")):
            value = {"allOf": [_ref("algorithm")]}
        schema["properties"][field.name] = {"description": meanings(cls)[field.name], **value}
    if issubclass(cls, ServerConfig):
        schema["allOf"] = [
            {"if": {"required": ["algorithm"], "properties": {"algorithm": _called(name)}}}
            | {"then": _with_settings(name, definitions)}
            for name in _algorithms(definitions)
        ]
    if cls is SweepConfig:
        template = _ref(AlgorithmTemplate.__name__)
        schema["properties"]["algorithms"]["patternProperties"] = {
            _in_any_case([name]): {
                "allOf": [template],
                "if": {"not": {"required": ["algorithm"]}},
                "then": _with_settings(name, definitions),
            }
            for name in _algorithms(definitions)
        }


def _of(kind: Any, definitions: dict[str, Schema]) -> Schema:
    """Returns the schema of an annotation."""
    given = next(metadata(kind, KeysOf), None)
    return _of_type(given.cls if given else bare(kind), definitions) | _bounds(kind)


def _bounds(kind: Any) -> Schema:
    return {keyword: bound for check in metadata(kind, Check) for keyword, bound in check.bounds}


def _of_type(kind: Any, definitions: dict[str, Schema]) -> Schema:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type, kind).__name__
        if name not in definitions:
            _define(typing.cast(type, kind), definitions)
        return _ref(name)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_of(arg, definitions) for arg in args]}
    if origin is Literal:
        return {"anyOf": [{"enum": list(args)}, {"type": "string", "pattern": _LATER}]}
    if origin is list:
        return _or_later(["array"]) | {"items": _of(args[0], definitions)}
    if origin is dict:
        return _or_later(["object"]) | {"additionalProperties": _of(args[1], definitions)}
    if kind is str:
        return {"type": ["string", "number", "boolean"]}  # numbers and booleans are read as text
    known = _TYPES.get(origin or kind)
    return _or_later(known) if known else {}


def _with_settings(name: str, definitions: Mapping[str, Schema]) -> Schema:
    """Returns the schema of `settings` and `model` of a server with this algorithm."""
    found: Schema = {"properties": {"settings": _ref(f"settings of {name}")}}
    if f"model of {name}" in definitions:
        found["if"] = {"not": {"required": ["rl_module"]}}  # a module has other settings
        found["then"] = {"properties": {"model": _ref(f"model of {name}")}}
    return found


def _algorithms(definitions: Mapping[str, Schema]) -> list[str]:
    start = "settings of "
    return [name.removeprefix(start) for name in definitions if name.startswith(start)]


def _object(properties: Mapping[str, Schema]) -> Schema:
    closed = {"properties": dict(properties), "additionalProperties": False}
    return _or_later(["object"]) | closed


def _or_later(kinds: list[str]) -> Schema:
    expected = f"expected {' or '.join(kinds)}"  # editors show this instead of the pattern
    return {"type": [*kinds, "string"], "pattern": _LATER, "patternErrorMessage": expected}


def _called(name: str) -> Schema:
    return {"type": "string", "pattern": _in_any_case([name])}


def _in_any_case(names: list[str]) -> str:
    """Returns a pattern that matches names in any case; JSON Schema has no flag for it."""
    words = ("".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in n) for n in names)
    return f"^({'|'.join(words)})$"


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name.replace(' ', '%20')}"}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for kind in KINDS:
        (FOLDER / f"{kind}.json").write_text(schema_text(kind, installed=False), encoding="utf-8")
