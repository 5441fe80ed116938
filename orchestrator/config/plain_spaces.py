"""Spaces as a config file spells them: ``{type: box, shape: [4]}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from muxrl.orchestrator.config.problems import listed
from muxrl.protocol import spaces as plain
from muxrl.protocol.suggestions import did_you_mean

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
        ValueError: no such kind of space, an unknown or missing key, a value that makes no space.
    """
    for sentence in _misspelt(tree):
        raise ValueError(sentence)
    space: plain.Space = msgspec.convert(tree, plain.Space)
    from muxrl.servers.spaces import to_gymnasium

    try:
        to_gymnasium(space)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{space} is not a space: {error or 'its numbers are out of range'}"
        ) from (error)
    return space


def _misspelt(tree: Any, where: str = "") -> Iterator[str]:
    """Yields a sentence for each kind and key that no space has; msgspec ignores such keys."""
    at = f"{where}: " if where else ""
    if not isinstance(tree, Mapping):
        yield f"{at}must be a mapping such as {{type: discrete, n: 2}}, got {tree!r}"
        return
    kind = tree.get("type")
    if kind not in _KINDS:
        hint = did_you_mean(str(kind), _KINDS)
        missing = "has no type" if kind is None else f"has the unknown type {kind!r}"
        yield f"{at}{missing}{hint}; types are {listed(_KINDS)}"
        return
    keys = ["type", *_KINDS[kind].__struct_fields__]
    for key in tree:
        if key not in keys:
            hint = did_you_mean(str(key), keys) or f"; known are {listed(keys)}"
            yield f"{at}a {kind} space has no {key!r}{hint}"
    inner = tree.get("spaces", ())
    items = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    for key, sub in items:
        yield from _misspelt(sub, f"{where}.{key}" if where else f"spaces.{key}")
