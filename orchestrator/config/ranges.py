"""Numbers of a config that are out of the range that their field declares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from muxrl.servers.config import AboveZero


def find_problems(config: Any, at: str = "", *, is_deep: bool = True) -> Iterator[str]:
    """Yields a sentence for each number of a config's dataclass that is out of its range.

    Args:
        config: the dataclass.
        at: what stands before its keys.
        is_deep: whether to look into the dataclasses in it, too.
    """
    hints = get_type_hints(type(config), include_extras=True)
    for name in (field.name for field in fields(config)):
        value = getattr(config, name)
        for range_text in getattr(hints[name], "__metadata__", ()):
            is_open = range_text in AboveZero.__metadata__
            is_right = value is None or value > 0 or (value == 0 and not is_open)
            if not is_right or not math.isfinite(value or 0):
                yield f"{at}{name}: is {value}, {range_text}"
        parts = {name: value}
        if isinstance(value, dict):
            parts = {f"{name}.{key}": part for key, part in value.items()}
        for key, part in parts.items():
            if is_deep and is_dataclass(part):
                yield from find_problems(part, f"{at}{key}.")
