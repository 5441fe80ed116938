"""Lets Python find the user's own modules, after everything that is installed.

A config names the user's environments and policies (``my_env:make_env``), which often lie in the
folder that muxrl is started in. That folder is moved to the *end* of ``sys.path``, in the command's
process and in every Ray worker. So a user's ``types.py``, ``queue.py`` or ``client.py`` is never
imported in place of the module of that name that Python or a library needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

_VARIABLE = "MUXRL_USER_FOLDERS"
"""Environment variable of Ray's workers: the folders to append, as in PATH."""
_added: list[str] = []


def prefer_installed_modules() -> None:
    """Moves the current folder to the end of this process's ``sys.path``."""
    _move_to_end([os.getcwd()])


def user_folders() -> list[str]:
    """Returns the folders where this process finds the user's modules, as absolute paths.

    These are the added folders, the folder of the running script if Python has put it into
    ``sys.path``, and last the current folder.
    """
    given = os.environ.get(_VARIABLE)
    if given is not None:  # this process is itself a worker
        return list(filter(None, given.split(os.pathsep)))
    script_folder = os.path.dirname(os.path.realpath(sys.argv[0]))
    found = [script_folder] if script_folder in sys.path else []
    return list(dict.fromkeys([*_added, *found, os.getcwd()]))


def add_user_folders(folders: Iterable[str]) -> None:
    """Lets this process and its workers find modules in these folders, before the current one.

    For a run that was launched in another folder than it is evaluated or resumed in.
    """
    new = [folder for folder in folders if folder not in sys.path and os.path.isdir(folder)]
    here = os.getcwd()
    place = sys.path.index(here) if here in sys.path else len(sys.path)
    sys.path[place:place] = new
    _added.extend(new)


def worker_variables() -> dict[str, str]:
    """Returns the environment variables from which a Ray worker's `find_user_modules` reads."""
    return {_VARIABLE: os.pathsep.join(user_folders())}


def find_user_modules() -> None:
    """Lets a Ray worker find the user's modules; does nothing in any other process."""
    if _VARIABLE in os.environ:
        _move_to_end(user_folders())


def _move_to_end(folders: list[str]) -> None:
    moved = {*folders, ""} if os.getcwd() in folders else set(folders)
    sys.path[:] = [*(path for path in sys.path if path not in moved), *folders]
