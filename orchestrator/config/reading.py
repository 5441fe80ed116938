"""Turns a tree into an object of the class that declares its keys; says what is wrong in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib import resources
from types import NoneType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.orchestrator.config.merge import (
    KeyPath,
    Tree,
    dotted,
    first_line,
    grammar_problem,
    leaves,
    merged,
    resolved,
)
from muxrl.protocol.suggestions import did_you_mean, listed
from muxrl.servers.config import ServerConfig
from muxrl.servers.declared import (
    KeysOf,
    bare,
    below,
    hints_of,
    keys_of,
    metadata,
    of_mapping,
    use_of,
    value_problem,
)
from muxrl.servers.setting_values import AlgorithmProblem, mismatch, read_as
from muxrl.servers.trainers.brought_settings import where_it_went

T = TypeVar("T")

_LEFT_OUT = object()
"""Stands in place of a value whose mistake has been noted."""
_RAISED = re.compile(r"^\w+ raised while resolving interpolation: ")
"""The text that OmegaConf puts before the reason of a resolver such as `oc.env`."""


class Reading(Generic[T]):
    """Reads a tree as a class declares it.

    Attributes:
        config: an object of the class; keys with mistakes have their defaults.
        mismatches: a sentence for each mistake, by path, in the order of the tree.

    Args:
        tree: mappings of mappings, with interpolations.
        schema: a dataclass, each of whose keys has a default.
    """

    def __init__(self, tree: Tree, schema: type[T]) -> None:
        self._schema = schema
        self._root: Any = None
        self._has_interpolations = False
        self.mismatches: dict[KeyPath, str] = {}
        self.config: T = self._keys(tree, schema, ())
        if not self._has_interpolations:
            return
        try:  # interpolations may refer to defaults
            defaults = asdict(cast(Any, self.config))
            self._root = OmegaConf.create(merged(defaults, tree, clears=False))
        except OmegaConfBaseException as error:
            self.mismatches[()] = grammar_problem(error)
            return
        self.mismatches.clear()
        self.config = self._keys(tree, schema, ())

    def _note(self, path: KeyPath, sentence: str) -> Any:
        self.mismatches[path] = f"{dotted(path)}: {sentence}"
        return _LEFT_OUT

    def _closed(self, value: Any, path: KeyPath) -> Any:
        """Returns a value with its interpolations resolved.

        `_LEFT_OUT` if one leads nowhere, or a value is left open (``???``).
        """
        found: Any = value
        for at, leaf in leaves(value, path, in_lists=True):
            if leaf == "???":
                is_secret = use_of(self._schema, at).is_secret
                unwritten = "; a token is never written down, so give it again" * is_secret
                found = self._note(at, f"is left open (???){unwritten}")
            elif isinstance(leaf, str) and "${" in leaf:
                self._has_interpolations = True
                try:
                    closed = _LEFT_OUT if self._root is None else resolved(self._root, path)
                    found = found if found is _LEFT_OUT else closed
                except (OmegaConfBaseException, TypeError, ValueError) as error:
                    reason = _RAISED.sub("", first_line(error)).strip(
                        '"'
                    )  # a KeyError's are its repr
                    found = self._note(at, f"{reason[:1].lower()}{reason[1:]}, in {leaf!r}")
        return found

    def _read(self, value: Any, kind: Any, path: KeyPath) -> Any:
        """Returns the value converted to its declared type; `_LEFT_OUT` after a mistake."""
        if not isinstance(value, Mapping):
            value = self._closed(value, path)
        inner = of_mapping(kind)
        is_section = is_dataclass(inner)
        if value is _LEFT_OUT:
            return value
        if isinstance(value, Mapping) and is_section:
            config = self._keys(value, inner, path)
            return self._entries(value, Any, path) if any(metadata(kind, KeysOf)) else config
        num = len(self.mismatches)
        if isinstance(value, Mapping) and (get_origin(inner) is dict or inner is Any):
            value = self._entries(value, inner, path)
        elif is_section and not (value is None and NoneType in get_args(bare(kind))):
            return self._note(path, mismatch(value, kind))
        else:
            try:
                value = read_as(f"{dotted(path)}:", value, kind, converts=True)
            except AlgorithmProblem as error:
                self.mismatches[path] = str(error)
                return _LEFT_OUT
        problem = value_problem(value, kind) if len(self.mismatches) == num else ""
        return self._note(path, problem) if problem else value

    def _entries(self, tree: Mapping[Any, Any], kind: Any, path: KeyPath) -> dict[str, Any]:
        found = {}
        for key, value in tree.items():
            if kind is Any or isinstance(key, str):
                found[key] = self._read(value, below(kind, key), (*path, key))
            else:
                self._note((*path, key), f"the key {mismatch(key, str)}")
        return {key: value for key, value in found.items() if value is not _LEFT_OUT}

    def _keys(self, tree: Mapping[Any, Any], cls: Any, path: KeyPath) -> Any:
        hints, found = hints_of(cls), {}
        for key, value in tree.items():
            if key in hints:
                found[key] = self._read(value, hints[key], (*path, key))
            else:
                algorithm = str(tree.get("algorithm", ""))
                hint = _belongs(path, str(key), cls, self._schema, algorithm)
                self._note((*path, key), f"unknown key {key!r}{hint}")
        return cls(**{key: value for key, value in found.items() if value is not _LEFT_OUT})


_OPTIONS = ("run_dir", "resume", "no_progress")
"""Options of `muxrl launch` that look like keys."""


def _belongs(parent: KeyPath, key: str, schema: type, root: type, algorithm: str) -> str:
    """Returns what an unknown key was perhaps meant to be, as the end of a sentence."""
    if elsewhere := [dotted(path) for path, _ in keys_of(root) if path[-1] == key]:
        return f"; it belongs at {' or '.join(elsewhere)}"
    if key in _OPTIONS:
        return f"; it is an option of the command: --{key.replace('_', '-')}"
    names, rest = hints_of(schema), ""
    if issubclass(schema, ServerConfig):
        rest = f"; settings of the algorithm go under {dotted((*parent, 'settings'))}"
        if found := _settings(parent, key, algorithm):
            return found
    return (
        where_it_went(key, (), ())
        or did_you_mean(key, names)
        or rest
        or f"; known are {listed(names, 20)}"
    )


def _settings(parent: KeyPath, key: str, algorithm: str) -> str:
    """Returns where a setting belongs that was given as a server's key; "" if it is unknown."""
    # From the generated schema: the declarations of libraries' settings would import the libraries.
    generated = resources.files("muxrl.experiments") / "schemas" / "experiment.json"
    declared = json.loads(generated.read_text(encoding="utf-8"))["definitions"]
    name, at = algorithm.upper(), dotted((*parent, "settings"))
    known, model = (
        declared.get(f"{what} of {name}", {}).get("properties", {})
        for what in ("settings", "model")
    )
    if key in known:
        return f"; it is a setting of {name}, and belongs at {at}.{key}"
    return where_it_went(key, known, model, at)
