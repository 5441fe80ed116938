"""One run is in all three trackers at once; their files are read afterwards."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.records.recorded import ASSIGNMENT, evaluation
from tests.orchestrator.trackers.tracked_runs import (
    end,
    tensorboard_scalars,
    tracked_run,
    wandb_records,
)
from tests.processes import MARK, assert_all_end

from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.trackers import tracking as tracking_module
from muxrl.orchestrator.trackers.tracking import Tracking

pytestmark = pytest.mark.timeout(300)  # each of the two `Tracking`s waits for up to 110 s

EXPECTED = {
    ("sheep/loss", 100): 0.5,
    ("sheep/learner/sheep/vf", 100): 2.0,
    ("joint/episode_return_mean/wolf_0", 200): -1.5,
    ("evaluation/sheep_random/wolf_0", 200): 2.0,
    ("evaluation/sheep_random/wolf_1", 200): 4.0,
    ("evaluation/sheep_random/sheep", 200): -1.0,
    ("joint/returns/wolves", 200): -1.5,
    ("joint/returns/total", 200): -1.5,
    # The mean of 2.5, the mean of 1 and 4, and 3.
    ("evaluation/sheep_random/returns/wolves", 200): 2.75,
    ("evaluation/sheep_random/returns/sheep", 200): -1.0,
    ("evaluation/sheep_random/returns/total", 200): 3.5,
}
"""By name and step: the expected number."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    root = tmp_path_factory.mktemp("tracked")
    run = tracked_run(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, root.name)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow.db'}")
        patch.chdir(root)
        for name in [n for n in os.environ if n.startswith("WANDB_") and n != "WANDB_MODE"]:
            patch.delenv(name)
        patch.setattr(tracking_module, "_END_S", 110.0)  # the machine may be busy
        with (
            # Another run creates MLflow's store at the same time, as parallel trials do.
            closing(Tracking(tracked_run(root), ["mlflow"])),
            closing(Tracking(run, ["tensorboard", "wandb", "mlflow"])) as trackers,
            MetricsWriter(run, trackers.receive) as metrics,
        ):
            metrics.server(
                "sheep", {"env_steps": 100, "loss": 0.5, "learner": {"sheep": {"vf": 2.0}}}
            )
            metrics.joint({"env_steps": 200, "episode_return_mean": {"wolf_0": -1.5}})
            metrics.evaluation(evaluation(200, "sheep", [1.0, 3.0], [4.0], [-1.0]))
            end(run)
        assert_all_end(root.name, 20.0)
    return run


def test_tensorboard(run: RunDirectory) -> None:
    (events,) = (run.path / "tensorboard").iterdir()
    assert tensorboard_scalars(events) == EXPECTED


def test_weights_and_biases(run: RunDirectory) -> None:
    (folder,) = (run.path / "wandb").glob("offline-run-*")
    (path,) = folder.glob("*.wandb")
    records = list(wandb_records(path))
    (begun,) = (r.run for r in records if r.HasField("run"))
    assert (begun.project, begun.display_name, list(begun.tags)) == ("tag", run.name, [ASSIGNMENT])
    config: dict[str, Any] = {u.key: json.loads(u.value_json) for u in begun.config.update}
    assert config["servers"] == {"sheep": {"algorithm": "PPO", "settings": {"lr": 0.001}}}
    assert config["simulation"] == {"kwargs": {"num_wolves": 2}, "gateway": {}}
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for items in (r.history.item for r in records if r.HasField("history"))
    ]
    logged = {
        (name, row["env_steps"]): value
        for row in rows
        for name, value in row.items()
        if not name.startswith("_") and name != "env_steps"
    }
    assert logged == EXPECTED
    axes = {m.glob_name: m.step_metric for r in records if r.HasField("metric") and (m := r.metric)}
    assert axes["*"] == "env_steps"
    (artifact,) = (r.artifact for r in records if r.HasField("artifact"))
    assert {entry.path for entry in artifact.manifest.contents} == {"summary.md", "learning.png"}
    (exit_,) = (r.exit for r in records if r.HasField("exit"))
    assert exit_.exit_code == 0


def test_mlflow(run: RunDirectory) -> None:
    with sqlite3.connect(run.path.parent / "mlflow.db") as store:
        other, (run_id, name, status, uri) = sorted(
            store.execute("SELECT run_uuid, name, status, artifact_uri FROM runs"),
            key=lambda row: row[1] == run.name,
        )
        logged = {(k, s): v for k, s, v in store.execute("SELECT key, step, value FROM metrics")}
        params = dict(store.execute("SELECT key, value FROM params WHERE run_uuid = ?", [run_id]))
        tags = dict(store.execute("SELECT key, value FROM tags WHERE run_uuid = ?", [run_id]))
        (experiment,) = store.execute("SELECT name FROM experiments WHERE name != 'Default'")
    store.close()
    assert other[2] == "KILLED", "it has not ended"
    assert (name, status, experiment) == (run.name, "FINISHED", ("tag",))
    assert logged == EXPECTED
    assert tags["assignment"] == ASSIGNMENT
    assert params["servers.sheep.settings.lr"] == "0.001"
    assert not any("token" in key for key in params)
    assert (run.path / "trackers" / "mlflow.txt").read_text().strip() == run_id
    report = Path(uri.removeprefix("file://")) / "report"
    assert {path.name for path in report.iterdir()} == {"summary.md", "learning.png"}
