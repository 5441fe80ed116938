"""A run can go on from its remote copy at any moment, and errors of copying are reported."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.storage.test_checkpoints import write

from muxrl.orchestrator.errors import CannotResume, ConfigError
from muxrl.orchestrator.storage import remote_copy
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder, Manifest, find_damage
from muxrl.orchestrator.storage.remote_copy import RemoteCopy, fetch, find_problem

NAME = "run-1"


class Breaking:
    """A file system that fails after some writes and deletions, and from then on."""

    type_name = "local"

    def __init__(self, files: Any, num_left: int) -> None:
        self._files = files
        self._num_left = num_left

    def __getattr__(self, name: str) -> Any:
        if name in ("open_output_stream", "delete_file"):
            self._num_left -= 1
            if self._num_left < 0:
                raise OSError("the line is down")
        return getattr(self._files, name)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Gives a run's directory with three checkpoints, and metrics that have grown with them."""
    folder = tmp_path / NAME
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: it\n")
    (folder / ".lock").touch()
    (folder / "metrics" / "ppo.jsonl").write_text("a" * 10)
    for env_steps in (100, 200, 300):
        write(CheckpointFolder(folder / "checkpoints"), env_steps)
    return folder


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "copies").as_uri()


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {
        name: data for name, data in found.items() if not name.startswith((".", "checkpoints/last"))
    }


def whole_ones(folder: Path) -> Iterator[Manifest]:
    """Yields the manifests of a copy; asserts that everything to which they refer is there."""
    checkpoints = CheckpointFolder(folder / "checkpoints")
    for env_steps in checkpoints.env_steps:
        place = checkpoints.path / str(env_steps)
        manifest = Manifest.read(place)
        assert list(find_damage(place, manifest)) == []
        metrics = folder / "metrics" / "ppo.jsonl"
        assert metrics.stat().st_size >= manifest.metrics_bytes["ppo.jsonl"]
        yield manifest


def test_a_copy_equals_the_directory_and_follows_its_changes(
    run: Path, uri: str, tmp_path: Path
) -> None:
    copy = RemoteCopy(run, uri, NAME, is_new=True)
    assert contents(tmp_path / "copies" / NAME) == contents(run)
    folder = CheckpointFolder(run / "checkpoints")
    write(folder, 400)
    folder.prune(2)
    (run / "metrics" / "ppo.jsonl").write_text("a" * 20)
    copy.update()
    assert copy.finish(30.0) == ""
    assert contents(tmp_path / "copies" / NAME) == contents(run)
    assert [m.env_steps for m in whole_ones(tmp_path / "copies" / NAME)] == [400, 300]


@pytest.mark.parametrize("num_operations", range(16))
def test_checkpoints_of_a_copy_are_whole_whenever_the_line_breaks(
    run: Path, uri: str, tmp_path: Path, num_operations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RemoteCopy(run, uri, NAME, is_new=True)
    folder = CheckpointFolder(run / "checkpoints")
    write(folder, 400, "others")
    folder.prune(1)
    (run / "metrics" / "ppo.jsonl").write_text("b" * 20)
    files = copy._files
    monkeypatch.setattr(copy, "_files", Breaking(files, num_operations))
    problem = copy.finish(30.0)
    found = [m.env_steps for m in whole_ones(tmp_path / "copies" / NAME)]
    assert found[0] in (300, 400)
    num_needed = 4 + 3 * 3  # metrics and three files of a checkpoint; then nine files are deleted
    assert problem == (
        "" if num_operations >= num_needed else f"the copy in {uri} is incomplete: the line is down"
    )
    if not problem:
        assert found == [400]


def test_failed_copies_are_tried_again(
    run: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RemoteCopy(run, uri, NAME, is_new=True)
    (run / "summary.md").write_text("won")
    files = copy._files
    monkeypatch.setattr(copy, "_files", Breaking(files, 0))
    copy.update()
    while not copy._problem:
        time.sleep(0.001)
    monkeypatch.setattr(copy, "_files", files)
    assert copy.finish(30.0) == ""
    assert (tmp_path / "copies" / NAME / "summary.md").read_text() == "won"


def test_errors_of_any_kind_are_reported(
    run: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RemoteCopy(run, uri, NAME, is_new=True)
    monkeypatch.setattr(copy, "_copy", lambda: int("x"))
    assert "is incomplete: invalid literal" in copy.finish(30.0)


def test_a_file_that_is_half_written_is_not_seen(
    run: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RemoteCopy(run, uri, NAME, is_new=True)
    (run / "metrics" / "ppo.jsonl").write_text("b" * 20)

    def breaks(source: Any, target: Any) -> None:
        target.write(source.read(3))
        raise OSError("the line is down")

    monkeypatch.setattr("shutil.copyfileobj", breaks)
    assert "the line is down" in copy.finish(30.0)
    assert (tmp_path / "copies" / NAME / "metrics" / "ppo.jsonl").read_text() == "a" * 10


def test_a_fetched_copy_has_the_names_of_its_best_checkpoints(
    run: Path, uri: str, tmp_path: Path
) -> None:
    path = run / "checkpoints" / "300" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"best": [[200, 1.0], [100, 0.5]]}))
    RemoteCopy(run, uri, NAME, is_new=True).finish(30.0)
    back = fetch(f"{uri}/{NAME}", tmp_path / "back")
    assert [m.env_steps for m in whole_ones(back)] == [300, 200, 100]
    folder = CheckpointFolder(back / "checkpoints")
    named = {name: folder.find(name) for name in ("last", "best", "best-2")}
    assert {name: place.resolve().name for name, place in named.items() if place} == {
        "last": "300", "best": "200", "best-2": "100",
    }  # fmt: skip
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_resumed_run_removes_from_its_copy_what_it_set_aside(
    run: Path, uri: str, tmp_path: Path
) -> None:
    RemoteCopy(run, uri, NAME, is_new=True).finish(30.0)
    CheckpointFolder(run / "checkpoints").set_aside(200)
    copy = RemoteCopy(run, uri, NAME, is_new=False)
    assert [m.env_steps for m in whole_ones(tmp_path / "copies" / NAME)] == [200, 100]
    assert copy.finish(30.0) == ""


def test_without_a_uri_nothing_is_done(run: Path) -> None:
    copy = RemoteCopy(run, None, NAME, is_new=True)
    copy.update()
    assert copy.finish(0.0) == ""


def test_an_existing_copy_is_not_overwritten(run: Path, uri: str, tmp_path: Path) -> None:
    other = tmp_path / "copies" / NAME / "thesis.tex"
    other.parent.mkdir(parents=True)
    other.touch()
    with pytest.raises(
        ConfigError, match=f"cannot hold a copy: a folder '{NAME}' exists there already"
    ):
        RemoteCopy(run, uri, NAME, is_new=True)
    assert [path.name for path in other.parent.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("uri", "story"),
    [
        (
            "s4://bucket/runs",
            "expected a URI such as s3://bucket/folder, got 's4:.*; the schemes are s3, gs",
        ),
        ("runs/copies", "expected a URI such as s3://bucket/folder, got 'runs/copies'"),
        ("s3://", "names no bucket and no folder"),
    ],
)
def test_text_that_is_no_uri_is_refused(uri: str, story: str) -> None:
    problem = find_problem(uri)
    assert problem is not None
    assert re.search(story, problem)


def test_a_missing_copy_is_refused(run: Path, uri: str, tmp_path: Path) -> None:
    with pytest.raises(CannotResume, match="holds no run: it has no config"):
        fetch(f"{uri}/none", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    with pytest.raises(CannotResume, match="exists already: resume"):
        fetch(f"{uri}/{NAME}", run)
    with pytest.raises(CannotResume, match="the schemes are s3, gs"):
        fetch("s4://bucket/run")


def test_a_file_that_is_deleted_meanwhile_is_seen_anew(
    run: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = {**remote_copy._contents(run), "checkpoints/50/ppo/state.pkl": (1, 1)}
    seen = iter([stale])
    real = remote_copy._contents
    monkeypatch.setattr(remote_copy, "_contents", lambda folder: next(seen, None) or real(folder))
    assert RemoteCopy(run, uri, NAME, is_new=True).finish(30.0) == ""
    assert contents(tmp_path / "copies" / NAME) == contents(run)
