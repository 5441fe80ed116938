"""A test that starts Ray without the marker `ray` fails, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_test_that_starts_ray_must_say_so(tmp_path: Path) -> None:
    (tmp_path / "test_unmarked.py").write_text(UNMARKED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT),
         "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "3 failed" in done.stdout
    assert done.stdout.count("only tests marked `ray` may start Ray") == 3
