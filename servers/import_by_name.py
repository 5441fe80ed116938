"""Imports users' own code, which a config names as "package.module:name"."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from muxrl.protocol.own_modules import NoSuchName, find_by_name
from muxrl.servers.setting_values import AlgorithmProblem


class CannotImport(ValueError):
    """An import path or an object's name cannot be imported; the message says why."""


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
        return find_by_name(module_name, name)
    except NoSuchName as error:
        raise CannotImport(f"{path!r}: {error}") from None
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise CannotImport(
            f"{path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def import_named(what: str, path: str, example: str) -> Any:
    """Returns the object at "package.module:name", as `import_by_name`.

    Raises:
        AlgorithmProblem: it cannot be imported; the message begins with `what`.
    """
    try:
        return import_by_name(path, example)
    except CannotImport as error:
        raise AlgorithmProblem(f"{what} {error}") from error


def path_of(value: Any) -> str:
    """Returns the "module:name" by which a class or function can be imported next to its file, ""
    if there is none; for an object of the running script the module is the script's name."""
    module, name = (str(getattr(value, key, "")) for key in ("__module__", "__qualname__"))
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", "") or "").stem
    return f"{module}:{name}" if module and name.replace(".", "").isidentifier() else ""


def name_of(value: Any) -> str:
    """Returns the "package.module:name" by which another process imports a class or function.

    Raises:
        CannotImport: no other process can import it.
    """
    module, name = (getattr(value, key, None) for key in ("__module__", "__qualname__"))
    if not isinstance(module, str) or not isinstance(name, str):
        raise CannotImport(
            f"{value!r} is an object without a name that another process could import; give the "
            "class or function, and its arguments separately"
        )
    reason = ""
    if "<lambda>" in name:
        reason = "is a lambda, which has no name"
    elif "<locals>" in name:
        reason = "is defined inside a function"
    elif module == "__main__":
        reason = "is defined in the script or notebook that runs here"
    if reason:
        raise CannotImport(
            f"{name!r} {reason}, so no other process can import it; define it at the top of a "
            "module of its own beside this one, and import it from there"
        )
    path = f"{module}:{name}"
    if import_by_name(path, path) is not value:
        raise CannotImport(
            f"{path!r} is now another object than the one given; was it reloaded? import it again"
        )
    return path
