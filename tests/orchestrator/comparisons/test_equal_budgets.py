"""Runs of the tutorial have equal budgets and evaluations however fast the simulation is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faults.hosted import Host
from tests.faults.started import PATIENCE_S
from tests.nights import at_night

from muxrl.experiments.examples.tutorial.toll_bridge import TollBridge
from muxrl.orchestrator import cli

_FILES = Path(__file__).parents[3] / "experiments" / "examples" / "tutorial"


class SlowBridge(TollBridge):
    def step(self, actions: Any) -> Any:
        time.sleep(0.004 if self.morning % 2 else 0.0)
        return super().step(actions)


_ENVS = [f"{TollBridge.__module__}:TollBridge", f"{__name__}:SlowBridge"]
_SMALL = [
    "stop.env_steps=305", "evaluation.interval_env_steps=100", "evaluation.num_episodes=4",
    "evaluation.final_num_episodes=4", "servers.keeper.settings.train_batch_size_per_learner=50",
    "servers.keeper.settings.minibatch_size=25", "trackers=[]",
]  # fmt: skip


pytestmark = pytest.mark.timeout(600)


# By day, findings/test_budget.py compares runs of equal budgets.
@pytest.mark.faults
@pytest.mark.parametrize("envs", at_night([_ENVS[1:], _ENVS], [_ENVS]), ids=["slow", "both"])
def test_runs_of_one_budget_compare_however_fast(
    tmp_path: Path, host: Host, envs: list[str]
) -> None:
    num_processes = 2  # two processes share the budget; how a single one spends it is certain
    processes = f"simulation.num_processes={num_processes}"
    for seed, env in enumerate(envs):
        run = tmp_path / str(seed)
        given = [*_SMALL, processes, f"simulation.env={env}", f"seed={seed}", "--no-progress"]
        launched, _ = host.launch(
            ["launch", str(_FILES / "bridge.yaml"), "--run-dir", str(run), *given]
        )
        assert launched.wait(PATIENCE_S) == 0, launched.communicate()[0]
        file = run / "metrics" / "evaluation.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        played = {r["env_steps"]: r["env_steps_played"] for r in records}
        assert list(played) == [0, 100, 200, 300, 305]
        assert [played[n] for n in (0, 100, 200, 300)] == [0, 100, 200, 300]
        # Each process has one open episode of 10 steps.
        assert 305 <= played[305] < 305 + 10 * num_processes
        config = run / "config.yaml"  # the two simulations differ only in their speed
        config.write_text(config.read_text().replace(_ENVS[1], _ENVS[0]))
    if len(envs) > 1:
        runs = [str(tmp_path / str(seed)) for seed in (0, 1)]
        assert cli.main(["compare", *runs, "--head-to-head", "--episodes", "4"]) == 0
