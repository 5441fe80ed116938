"""Which software a run was made with. Nothing here names a person or a machine."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import muxrl

PACKAGES = ("muxrl", "ray", "torch", "numpy", "gymnasium")
_SOURCE = Path(muxrl.__path__[0]).resolve().parents[1]
"""The checkout, where muxrl is imported from one."""


def software_versions() -> dict[str, str | None]:
    """Versions of Python, of the packages that shape results, of the platform and the source.

    A package that is not installed is None, and so is ``git_commit`` outside a checkout. A commit
    ends in ``-dirty`` where tracked files were changed after it.
    """
    return {
        "python": platform.python_version(),
        **{package: installed_version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "git_commit": _git_commit(),
    }


def read_versions(run_dir: Path) -> dict[str, Any]:
    """Returns what is in a run's ``versions.json``; {} if there is none that can be read."""
    try:
        found = json.loads((run_dir / "versions.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def versions_used(run_dir: Path) -> dict[str, list[str]]:
    """Returns by name each version that a run was made with, the newest first: one that was resumed
    may have several."""
    newest = read_versions(run_dir)
    found: dict[str, list[str]] = {}
    for versions in (newest, *reversed(newest.get("earlier", []))):
        for name, version in versions.items():
            if isinstance(version, str) and version not in found.get(name, []):
                found.setdefault(name, []).append(version)
    return found


def installed_version(package: str = "muxrl") -> str | None:
    """Returns the version of an installed package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != _SOURCE:
        return None  # installed: the folder around us may be another project's checkout
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    return f"{commit}-dirty" if _git("status", "--porcelain", "-uno") else commit


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_SOURCE), *arguments],
            capture_output=True,
            text=True,
            timeout=5.0,  # a network file system may hang; a version is not worth a wait
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
