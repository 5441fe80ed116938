"""A sweep on Ray Tune with a scheduler that ends the worse trial early."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import muxrl
from muxrl.orchestrator.sweeps.directory import TrialRecord

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SWEEP = {
    "experiment": {
        "simulation": {"env": "muxrl.experiments.simulations.zero_cost:ZeroCost", "num_cpus": 0.25},
        "stop": {"env_steps": 4_000},
        "evaluation": {"final_num_episodes": 4},
        "metrics_interval_s": 0.1,
        "trackers": ["tests.orchestrator.trackers.faulty:Notes"],
    },
    "roles": {"all": ["*"]},
    "algorithms": {
        "small": {
            "algorithm": "A2C",
            "settings": {"train_batch_size_per_learner": 100},
            "model": {"fcnet_hiddens": [8]},
        }
    },
    # Longer episodes have higher returns, so it is known which trial is worse.
    "parameters": {"simulation.kwargs.num_steps": {"grid": [40, 5]}},
    "metric": {"of": "all", "source": "training"},
    "scheduler": {"kind": "asha", "grace_env_steps": 200, "reduction_factor": 2},
    "max_concurrent": 1,
    "report_interval_s": 0.2,
}
NOTING = "tests.orchestrator.sweeps.test_on_asha:Noting"


class Noting(tune.Callback):
    """A callback as a user names it in a sweep; it writes down which trials have ended."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        with self._path.open("a") as file:
            file.write(f"{trial.config['trial']}\n")


@pytest.mark.usefixtures("running_ray")
def test_the_worse_of_two_trials_is_ended_early_and_the_better_goes_on_with_a_larger_budget(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sweep"
    noting = {"callbacks": {NOTING: {"path": str(tmp_path / "tune.txt")}}}
    result = muxrl.sweep({"name": "small", **SWEEP, **noting}, ["seeds=[3]"], sweep_dir=folder)
    better, worse = result.trials
    assert (better.status, worse.status) == ("done", "stopped_early")
    assert better.env_steps >= 4_000 > worse.env_steps
    assert better.metric > worse.metric
    assert result.best() is better

    frame = result.frame()
    assert list(frame["simulation.kwargs.num_steps"]) == [40, 5]
    assert list(frame["all"]) == ["small", "small"]
    # A trial that was ended early has ended as other runs do: with a report and checkpoints.
    for run_dir in frame["run_dir"]:
        assert (run_dir / "summary.json").exists()
        assert (run_dir / "checkpoints" / "last" / "all").exists()

    # Tune has called the callback, and each trial was a run of its own for the tracker.
    assert (tmp_path / "tune.txt").read_text().split() == [better.id, worse.id]
    lines = (folder / "runs" / "notes.jsonl").read_text().splitlines()
    calls = [json.loads(line) for line in lines]
    begun = [what for call, what in calls if call == "start"]
    assert [Path(run["folder"]).name for run in begun] == [better.id, worse.id]
    assert {(run["project"], run["group"]) for run in begun} == {("small", "sweep")}
    assert [what for call, what in calls if call == "end"] == ["done", "interrupted"]

    evaluations = result.evaluations()
    learned = evaluations[evaluations["replaced"].isna()]
    assert set(learned["run"]) == {better.id}
    assert learned["episode"].nunique() == 4
    assert all(map(math.isfinite, learned["return"]))

    assert muxrl.sweep(folder, resume=True).trials == result.trials

    def files(trial: TrialRecord) -> dict[str, bytes]:
        run = folder / str(trial.run_dir)
        return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}

    kept = files(worse)
    grown = muxrl.sweep(folder, ["experiment.stop.env_steps=4_500"], resume=True)
    goes_on, ended_early = grown.trials
    assert (ended_early, files(worse)) == (worse, kept)
    assert (goes_on.id, goes_on.run_dir, goes_on.status) == (better.id, better.run_dir, "done")
    assert goes_on.env_steps >= 4_500
    metrics = folder / str(better.run_dir) / "metrics"
    joint = [json.loads(line) for line in (metrics / "joint.jsonl").read_text().splitlines()]
    assert [row["resumed_from"] for row in joint if "resumed_from" in row] == [better.env_steps]
    assert [row["time_s"] for row in joint] == sorted({row["time_s"] for row in joint})
    learned = [json.loads(line) for line in (metrics / "all.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in learned] == list(range(1, len(learned) + 1))
