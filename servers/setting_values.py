"""Reads the value that a user gives a setting by its type, or says what is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from muxrl.protocol.suggestions import did_you_mean, listed
from muxrl.servers.declared import bare


class AlgorithmProblem(ValueError):
    """An algorithm cannot be built with these settings. The message says what to change."""


def suggestion(name: str, known: Collection[str]) -> str:
    """Returns the end of a refusal: known names similar to `name`, or all of them if none is."""
    return did_you_mean(name, known, most=3) or f"; known: {', '.join(sorted(known))}"


def signature_of(made_by: Callable[..., Any]) -> inspect.Signature:
    """Returns a signature, with evaluated annotations if all of them can be evaluated."""
    try:
        return inspect.signature(made_by, eval_str=True)
    except Exception:  # noqa: BLE001, it evaluates the user's text
        return inspect.signature(made_by)


def training_arguments(config_class: type) -> dict[str, Any]:
    """Returns the keyword arguments of an RLlib config's `training()`, and those of its bases, with
    their annotations."""
    methods = [vars(one)["training"] for one in config_class.__mro__ if "training" in vars(one)]
    parameters = [p for m in reversed(methods) for p in signature_of(m).parameters.values()]
    return {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}


_BARE = re.compile(r"\d|^(true|false)$", re.IGNORECASE)
"""Finds texts that may be meant as a number or a truth value."""


class _Mismatch(Exception):
    """A value is not of its type."""


def kind_of(annotation: Any, default: Any) -> Any:
    """Returns the type by which a parameter's values are judged; `Any` if it is not known.

    Args:
        annotation: evaluated, or text that cannot be evaluated.
        default: the default value. If it is not of the annotated type, as in some libraries, the
            type is the default's own, where a number allows any number.
    """
    if not isinstance(annotation, str) and annotation is not inspect.Parameter.empty:
        kind = Union[annotation, None] if default is None else annotation  # noqa: UP007, of objects
        with contextlib.suppress(_Mismatch, TypeError):  # the user's annotation may be anything
            if default is not inspect.Parameter.empty:
                _read(default, kind)
            return kind
    if isinstance(default, int) and not isinstance(default, bool):
        return int | float
    return next((one for one in (bool, float, dict) if isinstance(default, one)), Any)


def read_as(what: str, value: Any, kind: Any, *, converts: bool = False) -> Any:
    """Returns a setting's value converted to its type: 500.0 becomes 500 for a whole number.

    Args:
        what: the setting's name in messages.
        value: as the user wrote it.
        kind: the type. Only classes that YAML knows are judged.
        converts: whether text may stand for a number or a truth value, as it must in environment
            variables, and a number for text.

    Raises:
        AlgorithmProblem: the value is of another type; the message begins with `what`.
    """
    try:
        return _read(value, kind, converts)
    except _Mismatch:
        raise AlgorithmProblem(f"{what} {mismatch(value, kind)}") from None


def check_kind(what: str, value: Any, default: Any) -> None:
    """Refuses a value that is not of the default's type; raises as `read_as`."""
    read_as(what, value, kind_of("", default))


def _read(value: Any, kind: Any, converts: bool = False) -> Any:
    origin, args = get_origin(kind) or kind, get_args(kind)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin is Annotated:
        return _read(value, args[0], converts)
    if origin in (Union, types.UnionType):
        for one in args:
            with contextlib.suppress(_Mismatch):
                return _read(value, one, converts)
        raise _Mismatch
    if origin in _LISTS and isinstance(value, list | tuple):
        kinds = args if _is_fixed(origin, args) else (*args, Any)[:1] * len(value)
        if len(kinds) == len(value):
            return type(value)(map(_read, value, kinds, [converts] * len(value)))
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        of_keys, of_values = args or (Any, Any)
        return {_read(k, of_keys): _read(v, of_values, converts) for k, v in value.items()}
    elif origin is Literal:
        for one in args:
            if value == one and isinstance(value, bool) == isinstance(one, bool):
                return one
    elif origin is int and is_number and (isinstance(value, int) or value.is_integer()):
        return int(value)
    elif _fits(value, origin, is_number=is_number):
        return float(value) if converts and origin is float else value
    elif converts:
        return _converted(value, origin)
    raise _Mismatch


def _converted(value: Any, cls: Any) -> Any:
    if cls is bool and isinstance(value, int | str):
        meant = {**dict.fromkeys(("true", "yes", "on", "y", "1"), True),
                 **dict.fromkeys(("false", "no", "off", "n", "0"), False)}  # fmt: skip
        if str(value).lower() in meant:
            return meant[str(value).lower()]
    elif cls is str and isinstance(value, int | float):
        return str(value)
    elif cls in (int, float) and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return cls(value)
    raise _Mismatch


def _fits(value: Any, cls: Any, *, is_number: bool) -> bool:
    if cls is float:
        return is_number
    if cls in (type, Callable):  # in YAML, an import path
        return callable(value) or (isinstance(value, str) and ":" in value)
    is_judged = cls in _NAMES
    return not is_judged or (cls in (bool, str, types.NoneType) and isinstance(value, cls))


_LISTS = (list, tuple, Sequence)
_NAMES: dict[Any, str] = {
    **dict.fromkeys(_LISTS, "a list"),
    **dict.fromkeys((dict, Mapping), "a mapping of keys"),
    **{int: "an integer", float: "a number", bool: "true or false", str: "text"},
    **{types.NoneType: "null", Callable: "a function", type: "a class", Literal: ""},
}
_PLURALS: dict[Any, str] = {
    **dict.fromkeys(_LISTS, "lists"),
    **{int: "integers", float: "numbers", str: "text", Any: "values"},
}


def _is_fixed(origin: Any, args: tuple[Any, ...]) -> bool:
    return origin is tuple and bool(args) and args[-1] is not ...


def mismatch(value: Any, kind: Any) -> str:
    """Returns the end of a refusal: the expected type, the value, and what to write instead."""
    kind = bare(kind)
    got = f", got {_in_words(value)}{_remedy(value, kind)}"
    with contextlib.suppress(_Mismatch):
        unquoted, problem = without_quotes(value)
        _read(unquoted, kind)
        got = f", but {problem}" if problem else got
    return f"must be {_expected(kind)}{got}"


def without_quotes(value: Any) -> tuple[Any, str]:
    """Returns a value whose texts are read as if they had no quotes: as numbers, true or false,
    lists and mappings of these; and what is wrong with the first such text, "" for none."""
    problem = ""

    def read(value: Any) -> Any:
        nonlocal problem
        if isinstance(value, str) and _BARE.search(value):
            for parse in (json.loads, float):
                with contextlib.suppress(ValueError):
                    found = parse(value.lower())
                    bare = value.strip(" +")
                    problem = problem or f"{value!r} is text; leave out the quotes: {bare}"
                    return found
        if isinstance(value, Mapping):
            return {key: read(item) for key, item in value.items()}
        return [*map(read, value)] if isinstance(value, list | tuple) else value

    return read(value), problem


def _expected(kind: Any) -> str:
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return _expected(args[0])
    if origin is Literal:
        return "one of " * (len(args) > 1) + ", ".join(map(repr, args))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_expected, args)))
    if _is_fixed(origin, args):
        return f"[{', '.join(map(_expected, args))}]"
    if origin in _LISTS and args:
        inner = get_origin(bare(args[0])) or bare(args[0])
        is_known = inner in _PLURALS and not _is_fixed(inner, get_args(args[0]))
        of_many = "mappings" if dataclasses.is_dataclass(inner) else _expected(args[0])
        return f"a list of {_PLURALS[inner] if is_known else of_many}"
    if dataclasses.is_dataclass(origin):
        return _NAMES[dict]
    return _NAMES.get(origin) or str(getattr(kind, "__name__", kind))


def _in_words(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"a mapping with the keys {listed(map(str, value))}" if value else "an empty mapping"
    if isinstance(value, list):
        return f"the list {str(value)[:60]}"
    return repr(value) if not isinstance(value, str) else f"the text {value[:60]!r}"


def _remedy(value: Any, kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, str) and "," in value:
        return f"; write [{','.join(map(str.strip, value.split(',')))}]"
    if origin is list and isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"; write {json.dumps([value])}"
    if origin is Literal and isinstance(value, str):
        return did_you_mean(value, [arg for arg in args if isinstance(arg, str)])
    return ""
