"""What the commands need beyond the light client, and how to install it."""

from __future__ import annotations

from importlib.util import find_spec

_MODULES = (
    "ray", "torch", "gymnasium", "tree", "omegaconf", "yaml", "starlette", "uvicorn", "h11", "rich",
    "matplotlib", "jinja2", "scipy", "tensorboardX",
)  # fmt: skip
"""Of the extra `servers` in pyproject.toml; without uvloop, which is not made for Windows."""


def missing_extra(command: str) -> str:
    """Returns what a command lacks and how to install it, or "" if everything is installed.

    Nothing is imported. An install without extras has the client, and not the servers' packages.
    """
    missing = [name for name in _MODULES if find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"{command!r} needs {', '.join(missing)}, not installed here; "
        "they come with: pip install 'muxrl[servers]'"
    )
