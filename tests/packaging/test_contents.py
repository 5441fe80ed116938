"""The contents of the wheel and of the sdist."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from tests.packaging.installed import run

import muxrl

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
STORED = "experiments/benchmark/results"
"""The only results that are installed, as users compare their own with them."""
FOLDERS = ("client", "experiments", "orchestrator", "protocol", "servers")


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(wheel: Path) -> Message:
    return BytesParser().parsebytes(files_of(wheel)[f"{_stem(wheel)}.dist-info/METADATA"])


def test_the_wheel_holds_muxrl_and_nothing_else(wheel: Path) -> None:
    names = files_of(wheel)
    assert {name.partition("/")[0] for name in names} == {"muxrl", f"{_stem(wheel)}.dist-info"}
    inside = [PurePosixPath(n) for n in names if n.startswith("muxrl/")]
    assert {path.parts[1] for path in inside if len(path.parts) > 2} == set(FOLDERS)
    unwanted = {"tests", "results", "docs", "benchmarks", "__pycache__"}
    others = [path for path in inside if not path.is_relative_to(f"muxrl/{STORED}")]
    assert len(others) < len(inside)
    assert not [path for path in others if unwanted & set(path.parts)]


def test_every_module_and_packaged_file_is_in_the_wheel(wheel: Path) -> None:
    """Only the studies are left out, which are scripts and results of the checkout."""
    files = {
        path.relative_to(ROOT)
        for folder in FOLDERS
        for pattern in ("*.py", "*.yaml", "*.json", "*.html", "*.css", "*.js", "*.java", "*.hpp",
                        "*.jsonl")
        for path in (ROOT / folder).rglob(pattern)
        if not {"studies", "results"} & set(path.relative_to(ROOT).parts)
        or path.is_relative_to(ROOT / STORED)
    }  # fmt: skip
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


def test_the_metadata_is_complete_and_accepted_by_an_index(wheel: Path, sdist: Path) -> None:
    """Only the project's address on the web is missing, which its publisher has to add."""
    told = metadata_of(wheel)
    assert (told["Name"], told["Version"]) == ("muxrl", muxrl.__version__)
    assert told["License-Expression"] == "Apache-2.0"
    licence = files_of(wheel)[f"{_stem(wheel)}.dist-info/licenses/{told['License-File']}"]
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    assert {"RLlib", "PettingZoo"} <= set(told["Keywords"].split(","))
    pythons = [c.rpartition(" ")[2] for c in told.get_all("Classifier") if "Python :: 3." in c]
    assert pythons == ["3.10", "3.11", "3.12", "3.13"]
    extras = ["servers", "serving", "export", "sb3", "wandb", "mlflow", "simulations", "dev"]
    assert set(extras) <= set(told.get_all("Provides-Extra"))
    pytest.importorskip("twine")
    checked = [sys.executable, "-m", "twine", "check", "--strict", wheel, sdist]
    done = run(checked)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


def test_servers_are_refused_below_the_python_that_they_need(wheel: Path) -> None:
    told = metadata_of(wheel)
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
