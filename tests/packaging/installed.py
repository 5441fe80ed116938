"""Environments that hold an installed muxrl, made without downloading anything again.

None has the checkout: the processes run in an empty folder, without PYTHONPATH, and none of the
`.pth` files that make an editable install importable is read (asserted by a test).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Installed:
    """An environment with muxrl in it, and an empty folder to start from."""

    root: Path
    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """Returns this process's environment without what leads back to the checkout."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**kept, "PATH": f"{self.root / 'bin'}:/usr/bin:/bin"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs one of the environment's commands in the empty folder."""
        return subprocess.run(
            [str(self.root / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def start(self, *command: str, log: Path) -> subprocess.Popen[Any]:
        """Starts one of the environment's commands, its output in a file."""
        with log.open("w") as out:
            return subprocess.Popen(
                [str(self.root / "bin" / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
            )


def make_environment(root: Path, wheel: Path) -> Installed:
    """Makes an environment that holds the wheel, and of its dependencies none."""
    venv.create(root / "venv", with_pip=False, symlinks=True)
    (root / "empty").mkdir()
    installed = Installed(root / "venv", root / "empty")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(installed.python), "install", "--quiet",
         "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)],
        cwd=root,
        env=installed.environment(),
        check=True,
        capture_output=True,
    )  # fmt: skip
    return installed


def site_packages(installed: Installed) -> Path:
    """Returns the folder that the environment's packages lie in."""
    (found,) = (installed.root / "lib").glob("python*/site-packages")
    return found


def lend_all_packages(installed: Installed) -> None:
    """Makes this interpreter's packages importable there, too.

    A folder named by a `.pth` file is searched for packages; `.pth` files in that folder are not
    read, so an editable install there stays unseen.
    """
    pth = site_packages(installed) / "packages_of_the_tests.pth"
    pth.write_text(sysconfig.get_path("purelib") + "\n")


def lend_packages(installed: Installed, requirements: Iterable[str]) -> set[str]:
    """Links this interpreter's copies of distributions and of all that they require.

    Returns:
        The names of the distributions: what pip would install.
    """
    wanted = [_name(r) for r in requirements if _applies(r)]
    linked: dict[str, Distribution] = {}
    while wanted:
        name = wanted.pop()
        if name in linked:
            continue
        linked[name] = distribution(name)
        wanted += [_name(r) for r in linked[name].requires or () if _applies(r)]
    for found in linked.values():
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            target = site_packages(installed) / top
            if not target.exists():
                target.symlink_to(Path(str(found.locate_file(top))))
    return set(linked)


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def _applies(requirement: str) -> bool:
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})
