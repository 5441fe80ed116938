"""Every algorithm learns with the lowest versions that pyproject.toml allows.

Only torch, which is large, is the version of the tests. Packages that pyproject.toml does not name
are lent by the tests' interpreter, unless a lowest version does not work with them.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.packaging.installed import (
    Installed,
    lend_all_packages,
    make_environment,
    needed,
    pip_install,
    run,
    site_packages,
)

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
NOT_LOWEST = {"torch"}
NOTHING = "(from versions: none)"
"""pip prints this if there is no index; with one, it lists existing versions instead."""


def lowest_versions() -> dict[str, Version]:
    """Returns by name the lowest version of each package that the servers need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, Version] = {}
    for text in [*project["dependencies"], *project["optional-dependencies"]["servers"]]:
        requirement = Requirement(text)
        name, marker = canonicalize_name(requirement.name), requirement.marker
        if name in NOT_LOWEST or not (marker is None or marker.evaluate({"extra": ""})):
            continue
        (bound,) = requirement.specifier
        assert bound.operator == ">=", f"{text}: what is its lowest version?"
        found[name] = max(Version(bound.version), found.get(name, Version("0")))
    return found


def unmet(chosen: dict[str, Distribution]) -> Iterator[tuple[str, Requirement]]:
    """Yields requirements that are missing or not met, and the packages that have them."""
    wanted = [("muxrl", Requirement(name)) for name in (*chosen, "torch")]
    for who, requirement, found in needed(wanted, chosen):
        if found is None or not requirement.specifier.contains(found.version, prereleases=True):
            yield who, requirement


def _installed_in(environment: Installed) -> dict[str, Distribution]:
    found = Distribution.discover(path=[str(site_packages(environment))])
    return {canonicalize_name(d.name): d for d in found if d.name != "muxrl"}


def _pip(environment: Installed, *arguments: str) -> None:
    pip = [*pip_install(environment), "--only-binary", ":all:"]
    done = run([*pip, *arguments], env=environment.environment())
    if NOTHING in done.stderr:
        pytest.skip(f"needs an index of packages: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr


LEARN = """
import importlib.metadata, json, sys
sys.path.append(sys.argv[1])  # for the tests' own modules
import numpy as np, torch
from tests.servers.resumable import Served, plan_of
import muxrl
from muxrl.servers.lookup import own_algorithms

torch.set_num_threads(1)

def leaves(tree):
    if not isinstance(tree, (dict, list, tuple)):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [one for part in parts for one in leaves(part)]

def learns(algorithm):
    served = Served(plan_of(algorithm))
    before = served.state()["modules"]
    served.play(0, 8)
    served.end()
    assert not served.problems, served.problems
    after = leaves(served.state()["modules"])
    return any(not np.array_equal(a, b) for a, b in zip(leaves(before), after, strict=True))

print(json.dumps({
    "muxrl": muxrl.__file__,
    "versions": {name: importlib.metadata.version(name) for name in sys.argv[2:]},
    "learned": {entry.name: learns(entry.name) for entry in own_algorithms()},
}))
"""


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="has no wheels of its own for later Pythons"
)
@pytest.mark.timeout(600)
@pytest.mark.night  # by day: the pinned versions
def test_every_algorithm_makes_an_update(wheel: Path, tmp_path: Path) -> None:
    lowest = lowest_versions()
    environment = make_environment(tmp_path, wheel)
    _pip(environment, "--no-deps", *(f"{name}=={version}" for name, version in lowest.items()))
    # Packages that lowest versions need and the tests lack, and packages that need higher ones.
    problems = list(unmet(_installed_in(environment)))
    others = {who if canonicalize_name(r.name) in lowest else str(r) for who, r in problems}
    clashing = others & lowest.keys()
    assert not clashing, f"no lowest versions of each other: {clashing}: {problems}"
    if others:
        pins = tmp_path / "pins.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in lowest.items()))
        _pip(environment, "--constraint", str(pins), *sorted(others))
    assert not list(unmet(_installed_in(environment)))
    lend_all_packages(environment)
    learn = [environment.python, "-c", LEARN, str(ROOT), *lowest]
    done = run(learn, cwd=environment.folder, env=environment.environment())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert Path(told["muxrl"]).is_relative_to(environment.root)
    assert {name: Version(v) for name, v in told["versions"].items()} == lowest
    assert len(told["learned"]) >= 12
    assert all(told["learned"].values()), told["learned"]
