"""Users' own code, named in a config as "package.module:name"."""

from __future__ import annotations

import importlib
from typing import Any

from muxrl.protocol.suggestions import did_you_mean


class CannotImport(ValueError):
    """Nothing can be imported by that name; the message says why."""


def import_by_name(path: str, example: str) -> Any:
    """Returns the object at "package.module:name"; the name may have dots in it.

    Args:
        path: as the user wrote it.
        example: a valid path, for the message.

    Raises:
        CannotImport: `path` is malformed, its module cannot be imported, or has no such name.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not all(part.isidentifier() for part in name.split(".")):
        raise CannotImport(f"must look like {example!r}, not {path!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's code runs here, and may raise anything
        raise CannotImport(
            f"{path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if callable(getattr(found, n, None))]
            raise CannotImport(
                f"{path!r}: {module_name!r} has no {name!r}{did_you_mean(part, names)}"
            )
        found = getattr(found, part)
    return found
