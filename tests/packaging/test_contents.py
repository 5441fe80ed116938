"""What the wheel and the sdist hold."""

from __future__ import annotations

import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

import muxrl

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "experiments", "orchestrator", "protocol", "servers")


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_muxrl_and_nothing_else(wheel: Path) -> None:
    names = files_of(wheel)
    assert {name.partition("/")[0] for name in names} == {"muxrl", f"{_stem(wheel)}.dist-info"}
    inside = [PurePosixPath(n) for n in names if n.startswith("muxrl/")]
    assert {path.parts[1] for path in inside if len(path.parts) > 2} == set(FOLDERS)
    unwanted = {"tests", "results", "docs", "benchmarks", "__pycache__"}
    assert not [path for path in inside if unwanted & set(path.parts)]


def test_every_module_and_packaged_file_is_in_the_wheel(wheel: Path) -> None:
    """All but the studies, which are scripts and results of the checkout."""
    files = {
        path.relative_to(ROOT)
        for folder in FOLDERS
        for pattern in ("*.py", "*.yaml", "*.html", "*.css", "*.js", "*.java", "*.hpp")
        for path in (ROOT / folder).rglob(pattern)
        if not {"studies", "results"} & set(path.relative_to(ROOT).parts)
    }
    expected = {f"muxrl/{path}" for path in files}
    expected |= {f"muxrl/{path.name}" for path in (ROOT / "src/muxrl").iterdir() if path.is_file()}
    assert "muxrl/py.typed" in expected
    assert "muxrl/experiments/conf/chase.yaml" in expected
    missing = sorted(expected - files_of(wheel).keys())
    assert not missing


def test_the_sdist_builds_the_same_wheel_as_the_tree(wheel: Path, wheel_of_the_tree: Path) -> None:
    """The tree has links where the sdist has folders."""
    from_sdist, from_tree = files_of(wheel), files_of(wheel_of_the_tree)
    assert from_sdist.keys() == from_tree.keys()
    assert not [name for name, content in from_sdist.items() if from_tree[name] != content]


def test_the_sdist_needs_no_links(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    tops = {PurePosixPath(member.name).parts[1] for member in members if "/" in member.name}
    assert tops <= {"src", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml",
                    "setup.cfg"}  # fmt: skip


def _stem(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2])


def test_servers_are_refused_below_the_python_that_they_need(wheel: Path) -> None:
    files = files_of(wheel)
    told = BytesParser().parsebytes(files[f"{_stem(wheel)}.dist-info/METADATA"])
    assert told["Requires-Python"] == ">=3.10"
    for minor in (10, 11, 12):
        place = {"extra": "servers", "python_version": f"3.{minor}"}
        torches = [
            found.specifier
            for found in map(Requirement, told.get_all("Requires-Dist"))
            if found.name == "torch" and found.marker and found.marker.evaluate(place)
        ]
        fitting = all(asked.contains("2.9.1") for asked in torches)
        assert fitting == ((3, minor) >= muxrl.SERVERS_PYTHON), torches
