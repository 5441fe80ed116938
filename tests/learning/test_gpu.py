"""Every algorithm learns on a server's GPU, and acts on it if that is worth it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from tests.servers.resumable import CASES, Served, plan_of

from muxrl.servers.algorithms import torch_trainer
from muxrl.servers.config import ResourcesConfig

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
STRICT = """
from tests.learning.another_device import DEVICE
import torch
here, there = torch.ones(2), torch.ones(2, device=DEVICE)
assert float((there + 1).sum()) == 4.0 and there.cpu().numpy().sum() == 2.0
for wrong in (lambda: here + there, lambda: torch.nn.Linear(2, 1)(there), there.numpy):
    try:
        wrong()
    except (RuntimeError, TypeError):
        continue
    raise SystemExit(f"{wrong} is no mistake here")
"""


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_stand_in_for_a_gpu_is_as_strict_as_one() -> None:
    _run("-c", STRICT)


@pytest.mark.night  # by day: only the stand-in
def test_learners_leave_nothing_behind_on_the_cpu() -> None:
    told = json.loads(_run("-m", "tests.learning.another_device").splitlines()[-1])
    assert {case.partition(",")[0].partition(" ")[0] for case in told} == {
        algorithm for algorithm, _, _ in CASES.values()
    }
    for case, seen in told.items():
        assert seen["problems"] == [], case
        assert seen["learned"], case
        assert seen["num_acted"], case
        assert (seen["learner"], seen["acting"]) == (["another"], ["cpu"]), case


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("acts_there", [False, True])
def test_every_algorithm_learns_on_a_gpu(acts_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if acts_there:
        monkeypatch.setattr(torch_trainer, "_MIN_GPU_FLOPS", 0.0)
    for case in CASES:
        served = Served(plan_of(case, resources=ResourcesConfig(num_cpus=1, num_gpus=1)))
        acting: Any = served.policies.acting
        before = tree.flatten(acting.get("networks"))
        served.play(0, 8)
        served.end()
        assert served.problems == [], case
        after = tree.flatten(acting.get("networks"))
        assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)), case
        for policy_id, learner in acting.learners.items():
            for one, device in ((learner, "cuda"), (acting.acting(policy_id), "cpu")):
                assert {p.device.type for p in one.net.parameters()} == {device}, case
