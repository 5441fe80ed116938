"""Finds out with which software a run was made. Nothing here names a person or a machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import muxrl
from muxrl.orchestrator.user_modules import user_folders
from muxrl.protocol.own_modules import hidden_file
from muxrl.protocol.suggestions import listed

logger = logging.getLogger(__name__)

PACKAGES_FILE = "packages.txt"
"""File in a run's directory: all packages that were installed when it was last started."""
_DIRTY = "-dirty"
PACKAGES = ("muxrl", "ray", "torch", "numpy", "gymnasium")
_SOURCE = Path(muxrl.__path__[0]).resolve().parents[1]
"""The checkout from which muxrl is imported, if it is."""


SHOWN = {
    **{package: package for package in ("muxrl", "python", "ray", "torch", "numpy", "gymnasium")},
    "git_commit": "muxrl's source",
    "environment": "the environment's package",
    "environment_source": "the environment's source",
    "user_commit": "the folder it was started in",
}
"""Software that shapes results: by key of `software_versions`, its name for people."""


def software_versions(env: str = "") -> dict[str, str | None]:
    """Returns versions of Python, packages that shape results, platform, hardware and sources.

    A package that is not installed is None, and so is a commit outside a checkout: ``git_commit``
    is muxrl's, ``user_commit`` that of the folder in which the experiment was started. A commit
    ends in ``-dirty`` if tracked files were changed after it.

    Args:
        env: the environment, as a config names it. ``environment`` is the name and version of its
            package, None if that is among `PACKAGES`; ``environment_source`` is the beginning of
            the SHA-256 of its module.
    """
    folder = Path(user_folders()[-1])
    return {
        "python": platform.python_version(),
        **{package: installed_version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "hardware": _hardware(),
        # If muxrl is installed, the folder around it may be another project's checkout.
        "git_commit": _git_commit(_SOURCE) if _top(_SOURCE) == _SOURCE else None,
        "user_commit": None if _top(folder) == _SOURCE else _git_commit(folder),
        **_environment(env),
    }


def version_notes(used: Sequence[Mapping[str, Sequence[str]]]) -> Iterator[str]:
    """Yields a sentence if runs were made with different software.

    Args:
        used: `versions_used` of each run. Software that an older run does not name counts as the
            same.
    """
    found = {key: sorted({v for of in used for v in of.get(key, ())}) for key in SHOWN}
    if differing := [
        f"{SHOWN[key]}: {listed([short_version(v) for v in those])}"
        for key, those in found.items()
        if len(those) > 1
    ]:
        who = "the runs were" if len(used) > 1 else "the run was"
        yield f"{who} made with different versions of {'; of '.join(differing)}"


def changes_since(run_dir: Path, env: str = "") -> Iterator[str]:
    """Yields a sentence for each software of a run that differs from this process's.

    Software that the run does not name counts as the same. Uncommitted changes always count as
    different.

    Args:
        run_dir: the run's directory.
        env: the environment, as the run's config names it.
    """
    now = software_versions(env)
    for key, used in versions_used(run_dir).items():
        found = now.get(key)
        is_now = "not known here" if found is None else short_version(found)
        for was in used if key in SHOWN else ():
            if was != found:
                yield f"{SHOWN[key]} was {short_version(was)}, and is {is_now}"
            elif was.endswith(_DIRTY):
                yield f"{SHOWN[key]} was {short_version(was)}: it had uncommitted changes"
    packages = run_dir / PACKAGES_FILE
    if packages.is_file():
        before = set(packages.read_text(encoding="utf-8").split())
        if others := sorted(before - set(all_packages()), key=str.lower):
            yield f"packages of the run that are missing here: {listed(others)}; see {packages}"


def short_version(version: str) -> str:
    """Returns a version as it is shown; of a commit, the first ten digits."""
    commit, dirty, _ = version.partition(_DIRTY)
    is_commit = len(commit) == 40 and " " not in commit
    return f"{commit[:10] if is_commit else commit}{dirty}"


def read_versions(run_dir: Path) -> dict[str, Any]:
    """Returns the content of a run's ``versions.json``; {} if it cannot be read."""
    try:
        found = json.loads((run_dir / "versions.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def versions_used(run_dir: Path) -> dict[str, list[str]]:
    """Returns, by name, all versions with which a run was made, the newest first: a resumed run may
    have several."""
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


def all_packages() -> list[str]:
    """Returns all installed packages as ``name==version``, as pip reads them."""
    read = (package.metadata for package in metadata.distributions())  # a property that parses
    found = {f"{about['Name']}=={about['Version']}" for about in read if about["Name"]}
    return sorted(found, key=str.lower)


def _hardware() -> str:
    """Returns number and kind of the processors, and the GPUs, as far as Linux names them."""
    kinds = [f"{os.cpu_count()} x {_line('/proc/cpuinfo', 'model name') or platform.machine()}"]
    for gpu in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        kinds.append(_line(str(gpu), "Model"))
    return ", ".join(kinds)


def _line(file: str, name: str) -> str:
    """Returns the value of a file's first line ``name: value``; "" if there is none."""
    with contextlib.suppress(OSError):
        for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _environment(env: str) -> dict[str, str | None]:
    """Returns the package and the source of an environment; None for what cannot be found."""
    name, _, rest = env.partition(":")
    package: str | None = None
    source: str | None = None
    try:
        with contextlib.chdir("."):  # imported modules may change the folder
            if name == "gymnasium":
                registers, _, env_id = rest.rpartition(":")
                gymnasium = import_module(name)
                if registers:
                    import_module(registers)
                entry = gymnasium.spec(env_id).entry_point
                name = entry.partition(":")[0] if isinstance(entry, str) else entry.__module__
            spec = find_spec(name) if rest else None
        if spec is not None and spec.origin is not None:
            file = Path(hidden_file(name) or spec.origin)
            files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
            source = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]
            found = name.partition(".")[0]
            if installed_version(found) is None and "site-packages" in file.parts:
                found = metadata.packages_distributions()[found][0]  # takes a second
            version = None if found in PACKAGES else installed_version(found)
            package = None if version is None else f"{found} {version}"
    except Exception:  # a user's package may raise anything, and the run does not need this
        logger.info("the package and source of %r are not known", env, exc_info=True)
    return {"environment": package, "environment_source": source}


def _top(folder: Path) -> Path | None:
    """Returns the root of the checkout that a folder is in, None if it is in none."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top).resolve()


def _git_commit(folder: Path) -> str | None:
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    return f"{commit}{_DIRTY}" if _git(folder, "status", "--porcelain", "-uno") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=5.0,  # a network file system may hang, and a version is not worth a wait
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
