"""Where the user's own modules are found: after everything that is installed.

A config names environments and policies of the user's (``my_env:make_env``), which often lie in
the folder that muxrl is started in. That folder goes to the *end* of ``sys.path``, in the command's
process and in every Ray worker alike: so a user's ``types.py``, ``queue.py`` or ``client.py`` is
never imported in place of a module of that name that Python or a library means.
"""

from __future__ import annotations

import os
import sys

_VARIABLE = "MUXRL_USER_FOLDERS"
"""Environment variable of Ray's workers: the folders to append, as in PATH."""


def prefer_installed_modules() -> None:
    """Moves the current folder to the end of this process's ``sys.path``."""
    _move_to_end([os.getcwd()])


def worker_variables() -> dict[str, str]:
    """Returns environment variables with which `find_user_modules` finds them in a Ray worker.

    A worker finds them where this process does: in the current folder and, as Python has it, in
    the folder of the script that is running.
    """
    folders = os.environ.get(_VARIABLE)  # this process is itself a worker
    if folders is None:
        script_folder = os.path.dirname(os.path.realpath(sys.argv[0]))
        found = [script_folder] if script_folder in sys.path else []
        folders = os.pathsep.join(dict.fromkeys([*found, os.getcwd()]))
    return {_VARIABLE: folders}


def find_user_modules() -> None:
    """Lets a Ray worker find the user's modules; does nothing in any other process."""
    _move_to_end(list(filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep))))


def _move_to_end(folders: list[str]) -> None:
    moved = {*folders, ""} if os.getcwd() in folders else set(folders)
    sys.path[:] = [*(path for path in sys.path if path not in moved), *folders]
