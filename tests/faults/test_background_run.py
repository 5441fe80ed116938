"""A run beside a script: the script stops it, or is killed, and nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.faults.started import PATIENCE_S, ROOT, Started
from tests.faults.test_launch_faults import config
from tests.processes import MARK

from muxrl import RunResult
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SCRIPT = """
import sys
from muxrl import launch
run = launch(sys.argv[1], {"seed": 3}, run_dir=sys.argv[2], wait=False)
sys.stdin.readline()
print(run.status().state, run.stop().outcome)
"""


@pytest.fixture
def script(tmp_path: Path, temporary: Path) -> Iterator[Started]:
    (tmp_path / "hurt.yaml").write_text(yaml.safe_dump(config()))
    mark = f"{os.getpid()}-{tmp_path.name}"
    popen = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "hurt.yaml"), str(tmp_path / "run")],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
    )
    started = Started(popen, mark)
    yield started
    started.kill()


@pytest.mark.night  # by day: test_own_trainers.py
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_ends_with_the_script_that_started_it(
    script: Started, tmp_path: Path, is_killed: bool
) -> None:
    folder = RunDirectory(tmp_path / "run")
    joint, ppo = (folder.metrics / f"{name}.jsonl" for name in ("joint", "ppo"))
    script.wait_for("metrics", lambda: joint.exists() and ppo.exists(), PATIENCE_S)
    if is_killed:
        script.popen.kill()
        script.popen.communicate()
    else:
        script.output, _ = script.popen.communicate("\n", timeout=PATIENCE_S)
        assert script.output.endswith("running interrupted\n"), script.output
    script.assert_nothing_is_left(PATIENCE_S)
    result = RunResult.read(folder.path)
    assert (result.outcome, result.exit_code) == ("interrupted", 130)
    assert not result.training().empty
    status = read_status(folder)
    assert status is not None
    assert status.state == "interrupted"  # it said so itself
