"""What `conftest` promises: Ray only where a marker says so, a file's fixtures made once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

UNMARKED = """
import subprocess, sys
from muxrl.orchestrator.supervise.ray_session import ray_session

def test_starts_ray():
    with ray_session(num_cpus=1):
        pass

def test_starts_ray_in_a_child():
    code = "import ray; ray.init(num_cpus=1, include_dashboard=False)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_starts_ray_as_rllib_does():
    import ray
    ray.put(1)
"""


def pytest_of(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT),
         "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


def test_a_test_that_starts_ray_must_say_so(tmp_path: Path) -> None:
    (tmp_path / "test_unmarked.py").write_text(UNMARKED)
    done = pytest_of(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "3 failed" in done.stdout
    assert done.stdout.count("only tests marked `ray` may start Ray") == 3


def test_tests_of_a_file_share_a_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 adds groups to ids, which pytest 9.2 ignores in silence."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("its tests are not dealt to workers: make test")
    assert "@" in request.node.nodeid, "pytest-xdist does not group: which pytest is this?"
