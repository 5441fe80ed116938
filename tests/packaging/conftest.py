"""Fixtures: a wheel and an sdist of the checkout, and environments that have the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.nights import at_night
from tests.packaging.installed import (
    Installed,
    lend_all_packages,
    lend_packages,
    make_environment,
    pip_install,
    run,
)

ROOT = Path(__file__).parents[2]
COPIED = ("client", "experiments", "orchestrator", "protocol", "servers", "src", "tests", "LICENSE",
          "MANIFEST.in", "README.md", "pyproject.toml")  # fmt: skip
"""Everything that a build might take, including what it must leave out."""


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a copy of the checkout: setuptools writes into the tree that it builds."""
    copy = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="session")
def dist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a folder with the sdist, and with the wheel that was built from the sdist."""
    return _build(source, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def wheel_of_the_tree(source: Path, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives the wheel that was built from the tree, without an sdist in between."""
    (found,) = _build(source, tmp_path_factory.mktemp("wheel"), "--wheel").glob("*.whl")
    return found


@pytest.fixture(scope="session")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Gives an environment with the wheel and all its extras."""
    installed = make_environment(tmp_path_factory.mktemp("full"), wheel)
    lend_all_packages(installed)
    return installed


@pytest.fixture(scope="session")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Gives an environment with the wheel without extras, as for the machine of a simulation."""
    installed = make_environment(tmp_path_factory.mktemp("light"), wheel)
    lend_packages(installed)
    return installed


@pytest.fixture(scope="session")
def servers(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Gives an environment with the wheel and the extra `servers` alone: runs on one machine."""
    installed = make_environment(tmp_path_factory.mktemp("servers"), wheel)
    lend_packages(installed, "servers")
    return installed


@pytest.fixture(scope="session")
def oldest(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Gives an environment without extras for the oldest Python on which the client runs."""
    return _client_of("3.10", wheel, tmp_path_factory)


@pytest.fixture(scope="session", params=at_night(["3.10", "3.13"], ["3.13"]))
def client(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Installed]:
    """Gives the version of another Python than the tests', with an environment without extras."""
    if request.param == "3.10":
        return request.param, request.getfixturevalue("oldest")
    return request.param, _client_of(request.param, wheel, tmp_path_factory)


def _client_of(version: str, wheel: Path, factory: pytest.TempPathFactory) -> Installed:
    python = _find_python(version)
    if python is None:
        pytest.skip(f"needs a python{version}, on the PATH or of pyenv's")
    root = factory.mktemp(f"python{version}")
    installed = Installed(root / "venv", root / "empty")
    installed.folder.mkdir()
    subprocess.run([python, "-m", "venv", "--without-pip", installed.root], check=True)
    pip = pip_install(installed)
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    # Its compiled packages differ from this interpreter's, which therefore cannot be lent.
    done = run([*pip, wheel])
    if done.returncode:
        pytest.skip(f"its packages cannot be had here: {done.stderr.strip()[-200:]}")
    return installed


def _find_python(version: str) -> str | None:
    """Returns an interpreter that can make environments; pyenv's `python3.x` may only be a shim."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
    for python in filter(None, found):
        if run([python, "-c", "import ensurepip"]).returncode == 0:
            return str(python)
    return None


def _build(source: Path, out: Path, *arguments: str) -> Path:
    build = [sys.executable, "-m", "build", "--no-isolation", *arguments]
    done = run([*build, "--outdir", out, source])
    assert done.returncode == 0, done.stdout + done.stderr
    return out
