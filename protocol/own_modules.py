"""Finds what a config names: the user's own files come before installed modules of the same name.

Only the config's names are found in this way: a library that imports ``six`` still gets the
installed one.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from muxrl.protocol.suggestions import did_you_mean

_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def import_own(name: str) -> ModuleType:
    """Imports "module" or "package.module"; raises whatever the import raises."""
    top, dot, rest = name.partition(".")
    spec = _hidden(top)
    if spec is None or spec.origin is None:
        return importlib.import_module(name)
    other_name = f"_own_{top}"
    module = sys.modules.get(other_name)
    if module is None or getattr(module, "__file__", None) != spec.origin:
        within = spec.submodule_search_locations
        own = spec_from_file_location(other_name, spec.origin, submodule_search_locations=within)
        assert own is not None
        assert own.loader is not None
        sys.modules[other_name] = module = module_from_spec(own)
        try:
            own.loader.exec_module(module)
        except BaseException:
            del sys.modules[other_name]
            raise
    return importlib.import_module(other_name + dot + rest)


class NoSuchName(ValueError):
    """A module lacks a name; the message names both, and similar names."""


def find_by_name(module_name: str, name: str, *, most: int = 1) -> Any:
    """Returns the object of that name in a module; the name may have dots.

    Args:
        module_name: as for `import_own`.
        name: of a class, a function or a module inside.
        most: maximum number of names that an error suggests.

    Raises:
        NoSuchName: the module has no such name.
        BaseException: whatever importing the module, or one inside it, raises.
    """
    found: Any = import_own(module_name)
    for part in name.split("."):
        inner = submodules(found)
        if part in inner and not hasattr(found, part):
            found = importlib.import_module(inner[part])
            continue
        if not hasattr(found, part):
            is_module = isinstance(found, ModuleType)
            owner = repr(module_name if is_module else getattr(found, "__qualname__", str(found)))
            if file := getattr(found, "__file__", None):
                owner += f" ({file})"
            names = [n for n in dir(found) if n[0] != "_" and callable(getattr(found, n, None))]
            hint = did_you_mean(part, [*names, *inner], most=most)
            raise NoSuchName(f"{owner} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def submodules(package: Any) -> dict[str, str]:
    """Returns by name the full names of a package's modules; {} for anything but a package."""
    if not isinstance(package, ModuleType):
        return {}
    path = getattr(package, "__path__", [])
    return {
        module.name: f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(path)
    }


def hidden_file(name: str) -> str:
    """Returns the user's file that an installed module of the same name hides, "" without one."""
    spec = _hidden(name.partition(".")[0])
    return "" if spec is None else spec.origin or ""


def _hidden(top: str) -> ModuleSpec | None:
    folders = [f for f in sys.path if not (_is_in_library(f) or os.path.basename(f) in _INSTALLED)]
    spec = PathFinder.find_spec(top, folders)
    if spec is None or spec.origin is None:  # not found, or a folder without code
        return None
    module = sys.modules.get(top)
    try:
        usual = find_spec(top) if module is None else module.__spec__
    except ValueError:
        usual = None
    return None if usual is not None and usual.origin == spec.origin else spec


def _is_in_library(folder: str) -> bool:
    return os.path.join(folder, "").startswith(_LIBRARY)
