"""The state of the runs and sweeps in a folder, which `muxrl runs --json` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.orchestrator.manage.filled import fill

from muxrl.orchestrator.manage.listing import Listing
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.sweeps.directory import SweepDirectory


def test_a_sweep_whose_process_lives_is_running_even_without_a_running_trial(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    sweep = SweepDirectory.open(tmp_path / "tuned-20261120-000000")
    listing = Listing(tmp_path)

    def state() -> str:
        return next(e["state"] for e in listing.read()["entries"] if e["kind"] == "sweep")

    with sweep.locked():
        assert state() == "waiting", "it does not say by whom"
        sweep.write_owner(Process.here(ends_on_sigterm=True))
        assert state() == "running"
        sweep.write_owner(replace(Process.here(ends_on_sigterm=True), started="long ago"))
        assert state() == "waiting", "another one begins, and has not said so yet"
    assert state() == "waiting"


def test_learned_returns_are_found_however_long_other_conditions_are(tmp_path: Path) -> None:
    """Here the learned returns stand 330 KiB before the end: 20 agents, 100 episodes, a metric."""
    fill(tmp_path)
    returns = {
        agent: [-0.123456789012] * 100
        for agent in ("wolf_0", "wolf_1", "sheep", *map(str, range(17)))
    }
    with MetricsWriter(RunDirectory(tmp_path / "runs" / "tag-20261121-000000")) as metrics:
        for replaced in (None, "wolves", "sheep", "dogs", "cats"):
            metrics.evaluation(
                {
                    "env_steps": 1_234,
                    "replaced": replaced,
                    "returns": returns,
                    "metrics": {"caught": returns},
                }
            )
    (entry,) = (e for e in Listing(tmp_path).read()["entries"] if "tag" in e["name"])
    assert [s["evaluated"] for s in entry["servers"]] == [pytest.approx(-0.123456789012)] * 2


def test_only_changed_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    listing = Listing(tmp_path)
    first = listing.read()
    read: list[Path] = []
    look = listing._entry
    monkeypatch.setattr(listing, "_entry", lambda path: read.append(path) or look(path))
    assert listing.read() == first
    assert [path.name for path in read] == ["tuned-20261120-000000"], "a sweep's trials may die"
    read.clear()
    done = RunDirectory(tmp_path / "runs" / "tag-20261121-000000")
    with MetricsWriter(done) as metrics:
        metrics.joint({"env_steps": 5_000})
    (entry,) = (e for e in listing.read()["entries"] if "tag" in e["name"])
    assert done.path in read
    assert entry["env_steps"] == 5_000


def test_an_interrupted_run_is_listed_as_resumable_from_its_newest_checkpoint(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    listing = Listing(tmp_path)
    assert {e.get("resumable_at") for e in listing.read()["entries"]} == {None}
    for name in ("killed-20261122-000000", "runs/tag-20261121-000000"):
        for env_steps in (500, 1_500):
            place = RunDirectory(tmp_path / name).checkpoints / str(env_steps)
            place.mkdir()
            Manifest(env_steps, 1.0, "", None, {}, {}, {}, {}).write(place)
    resumable = {e["name"]: e.get("resumable_at") for e in listing.read()["entries"]}
    assert resumable["killed-20261122-000000"] == 1_500
    assert resumable["runs/tag-20261121-000000"] is None, "it is done"
