"""Environments in which muxrl is installed, made without downloading anything again.

None has the checkout: the processes run in an empty folder, without PYTHONPATH, and none of the
`.pth` files that make an editable install importable is read (a test asserts this).
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def run(command: Sequence[str | Path], **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command; returns its output and its exit code."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


@dataclass(frozen=True)
class Installed:
    """An environment in which muxrl is installed, and an empty folder to start from."""

    root: Path
    folder: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.root / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """Returns this process's environment variables without those that lead to the checkout."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**kept, "PATH": f"{self.root / 'bin'}:/usr/bin:/bin"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs one of the environment's commands in the empty folder."""
        program = [str(self.root / "bin" / command[0]), *command[1:]]
        return run(program, cwd=self.folder, env=self.environment(), timeout=90)

    def start(self, *command: str, log: Path) -> subprocess.Popen[Any]:
        """Starts one of the environment's commands with its output in a file."""
        with log.open("w") as out:
            return subprocess.Popen(
                [str(self.root / "bin" / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
            )


def pip_install(installed: Installed) -> list[str | Path]:
    """Returns the command that installs into an environment without compiling modules."""
    pip = [sys.executable, "-m", "pip", "--python", installed.python, "install", "--quiet"]
    return [*pip, "--no-compile", "--disable-pip-version-check"]


def make_environment(root: Path, wheel: Path) -> Installed:
    """Makes an environment with the wheel, but without its dependencies."""
    venv.create(root / "venv", with_pip=False, symlinks=True)
    (root / "empty").mkdir()
    installed = Installed(root / "venv", root / "empty")
    pip = [*pip_install(installed), "--no-deps", "--no-index", wheel]
    done = run(pip, cwd=root, env=installed.environment())
    assert done.returncode == 0, done.stderr
    return installed


def site_packages(installed: Installed) -> Path:
    """Returns the folder of the environment's packages."""
    (found,) = (installed.root / "lib").glob("python*/site-packages")
    return found


def lend_all_packages(installed: Installed) -> None:
    """Makes this interpreter's packages importable in an environment.

    A folder named by a `.pth` file is searched for packages; `.pth` files in that folder are not
    read, so an editable install there stays unseen.
    """
    pth = site_packages(installed) / "packages_of_the_tests.pth"
    pth.write_text(sysconfig.get_path("purelib") + "\n")


def requirements_of(
    found: Distribution, extras: frozenset[str] = frozenset()
) -> Iterator[Requirement]:
    """Yields the requirements of a distribution on this machine."""
    for requirement in map(Requirement, found.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in extras or {""}):
            yield requirement


def needed(
    wanted: list[tuple[str, Requirement]], chosen: Mapping[str, Distribution]
) -> Iterator[tuple[str, Requirement, Distribution | None]]:
    """Yields all packages that are needed: by which package, the requirement, the distribution
    found.

    Args:
        wanted: the first packages and their requirements.
        chosen: distributions by name that replace those of the tests' interpreter.
    """
    seen = set()
    while wanted:
        who, requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        try:
            found = chosen.get(name) or distribution(name)
        except ModuleNotFoundError:
            found = None
        yield who, requirement, found
        key = name, frozenset(requirement.extras)
        if found is not None and key not in seen:
            seen.add(key)
            wanted += [(name, r) for r in requirements_of(found, key[1])]


def lend_packages(installed: Installed, *extras: str) -> None:
    """Links this interpreter's copies of the packages that muxrl needs with these extras."""
    (muxrl,) = Distribution.discover(name="muxrl", path=[str(site_packages(installed))])
    wanted = [("muxrl", r) for r in requirements_of(muxrl, frozenset(extras))]
    for _, requirement, found in needed(wanted, {}):
        assert found is not None, requirement
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            target = site_packages(installed) / top
            if not target.exists():
                target.symlink_to(Path(str(found.locate_file(top))))
