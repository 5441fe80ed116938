"""Reads an agent's spaces from their plain form in a config: ``{type: box, shape: [4]}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muxrl.protocol import spaces as plain
from muxrl.protocol.suggestions import did_you_mean, listed, similar_or_known

_KINDS: dict[str, type[msgspec.Struct]] = {
    "box": plain.Box,
    "discrete": plain.Discrete,
    "multi_discrete": plain.MultiDiscrete,
    "multi_binary": plain.MultiBinary,
    "dict": plain.DictSpace,
    "tuple": plain.TupleSpace,
}


def read_space(tree: Any) -> plain.Space:
    """Returns the space that a mapping describes.

    Raises:
        ValueError: the kind of space is unknown, a key is unknown or missing, or a value is wrong.
    """
    for sentence in _misspelt(tree):
        raise ValueError(sentence)
    space: plain.Space = msgspec.convert(tree, plain.Space, strict=False)  # "3" is 3, as elsewhere
    from muxrl.servers.gymnasium_spaces import to_gymnasium

    try:
        to_gymnasium(space)
    except (AssertionError, MemoryError, TypeError, ValueError) as error:
        raise ValueError(
            f"{space} is not a space: {error or 'its numbers are out of range'}"
        ) from (error)
    return space


def find_space_problem(tree: Any) -> str:
    """Returns what is wrong with a mapping that describes a space; "" if it is right or empty."""
    try:
        if tree:
            read_space(tree)
    except ValueError as error:  # msgspec's errors are ValueErrors, too
        return str(error)
    return ""


def _misspelt(tree: Any, where: str = "") -> Iterator[str]:
    """Yields a sentence for each unknown kind and key of a space; msgspec ignores such keys."""
    at = f"{where}: " if where else ""
    if not isinstance(tree, Mapping):
        yield f"{at}must be a mapping such as {{type: discrete, n: 2}}, got {tree!r}"
        return
    kind = tree.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        hint = did_you_mean(str(kind), _KINDS)
        missing = "has no type" if kind is None else f"has the unknown type {kind!r}"
        yield f"{at}{missing}{hint}; types are {listed(_KINDS)}"
        return
    keys = ["type", *_KINDS[kind].__struct_fields__]
    for key in tree:
        if key not in keys:
            yield f"{at}a {kind} space has no {key!r}{similar_or_known(str(key), keys)}"
    inner = tree.get("spaces", ())
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        inner = dict(enumerate(inner))
    if not isinstance(inner, Mapping):
        yield f"{at}spaces must be a mapping or a list of spaces, got {inner!r}"
        return
    for key, sub in inner.items():
        yield from _misspelt(sub, f"{where}.{key}" if where else f"spaces.{key}")
