"""Modules that a config names: the user's own files come before installed modules of that name.

Nobody else gets such a file in its place: a library that imports ``six`` has the installed one.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType

_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def import_own(name: str) -> ModuleType:
    """Imports "module" or "package.module"; raises what that raises."""
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


def hidden_file(name: str) -> str:
    """Returns the user's file that is meant by a name which Python has for another; "" if none."""
    spec = _hidden(name.partition(".")[0])
    return "" if spec is None else spec.origin or ""


def _hidden(top: str) -> ModuleSpec | None:
    folders = [f for f in sys.path if not (_is_in_library(f) or os.path.basename(f) in _INSTALLED)]
    spec = PathFinder.find_spec(top, folders)
    if spec is None or spec.origin is None:  # none, or a folder of other things
        return None
    module = sys.modules.get(top)
    try:
        usual = find_spec(top) if module is None else module.__spec__
    except ValueError:
        usual = None
    return None if usual is not None and usual.origin == spec.origin else spec


def _is_in_library(folder: str) -> bool:
    return os.path.join(folder, "").startswith(_LIBRARY)
