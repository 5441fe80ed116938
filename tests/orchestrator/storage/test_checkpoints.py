"""Checkpoints on disk are whole or absent, are found by name, and are limited in number."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muxrl.orchestrator.errors import CannotResume
from muxrl.orchestrator.storage.checkpoints import (
    BEST,
    CheckpointFolder,
    Manifest,
    SavedServer,
    best_name,
    find_damage,
    find_whole,
    hash_files,
)
from muxrl.servers.checkpoints.checkpoint import (
    ABOUT_FILE,
    REPLAY_FILE,
    Checkpoint,
    find_newest,
)
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE
from muxrl.servers.setting_values import AlgorithmProblem


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints")


def write(
    folder: CheckpointFolder,
    env_steps: int,
    content: str = "weights",
    learning: Sequence[str] = ("ppo",),
    fixed: str = "random",
) -> Path:
    draft = folder.draft(env_steps)
    saved = {fixed: SavedServer("RANDOM")}
    for server_id in learning:
        file = draft / server_id / "deep" / "state.pkl"
        file.parent.mkdir(parents=True)
        file.write_text(content)
        (draft / server_id / ABOUT_FILE).write_text('{"weights_seq_no": 5}')
        saved[server_id] = SavedServer.of("PPO", 3, draft / server_id)
    manifest = Manifest(
        env_steps, 1.5, "2026-11-22T00:00:00+00:00", "0.1.0", saved, {"simulation-0": 4},
        {"ppo.jsonl": 10}, {"env_steps": env_steps}, 2_000,
    )  # fmt: skip
    return folder.commit(draft, manifest)


def test_a_checkpoint_is_read_back_undamaged(folder: CheckpointFolder) -> None:
    place = write(folder, 120)
    manifest = Manifest.read(place)
    assert (manifest.servers["ppo"].iteration, manifest.servers["ppo"].weights_seq_no) == (3, 5)
    assert manifest.servers["random"].weights_seq_no is None
    assert set(manifest.servers["ppo"].files) == {"deep/state.pkl", ABOUT_FILE}
    assert manifest.num_episodes_begun == {"simulation-0": 4}
    assert list(find_damage(place, manifest)) == []
    assert folder.of_server("ppo") == folder.path / "last" / "ppo"
    assert folder.of_server("ppo", "120") == place / "ppo"
    assert folder.of_server("random") is None
    assert (folder.path / "last").readlink() == Path("120")  # relative, so that runs can be moved


def test_each_damaged_file_is_named(folder: CheckpointFolder) -> None:
    place = write(folder, 120)
    manifest = Manifest.read(place)
    file = place / "ppo" / "deep" / "state.pkl"
    file.write_text("weighty")
    (damage,) = find_damage(place, manifest)
    assert str(file) in damage
    assert "SHA-256" in damage
    file.unlink()
    (damage,) = find_damage(place, manifest)
    assert f"{file} cannot be read: No such file" in damage


@pytest.mark.parametrize(
    ("name", "is_refused"), [("ppo/deep/state.pkl", True), (f"ppo/{REPLAY_FILE}", False)]
)
def test_policies_of_a_damaged_checkpoint_are_refused(
    folder: CheckpointFolder, name: str, is_refused: bool
) -> None:
    """A damaged replay is not noticed: it may be large, and policies do not need it."""
    place = write(folder, 120)
    (place / "ppo" / ABOUT_FILE).write_text('{"format": 1}')
    manifest = Manifest.read(place)
    own = replace(
        manifest.servers["ppo"], files={**hash_files(place / "ppo"), REPLAY_FILE: "0" * 64}
    )
    replace(manifest, servers={"ppo": own}).write(place)
    (place / name).write_text("other")
    last = folder.path / "last" / "ppo"
    if not is_refused:
        assert Checkpoint.open(last).path == place / "ppo"
        return
    with pytest.raises(
        AlgorithmProblem, match=r"state\.pkl has changed since it was written: its SHA-256"
    ):
        Checkpoint.open(last)


def test_checkpoints_of_a_server_are_those_that_hold_it(folder: CheckpointFolder) -> None:
    write(folder, 100)
    place = write(folder, 120)
    assert folder.names("ppo") == ["120", "100", "last"]
    shutil.rmtree(place / "ppo")
    assert folder.names("ppo") == ["100"]


def test_a_server_goes_on_from_the_newest_checkpoint_with_its_own_files_whole(
    folder: CheckpointFolder,
) -> None:
    assert find_whole(folder, "ppo") == (None, [])
    older, newer = write(folder, 120), write(folder, 240)
    assert find_whole(folder, "ppo") == ((newer, Manifest.read(newer)), [])
    (newer / "ppo" / "deep" / "state.pkl").write_text("weighty")
    found, (problem,) = find_whole(folder, "ppo")
    assert found == (older, Manifest.read(older))
    assert "state.pkl has changed since it was written" in problem
    # This server's files in the newest checkpoint are undamaged.
    assert find_whole(folder, "random") == ((newer, Manifest.read(newer)), [])
    (older / MANIFEST_FILE).write_text("{")
    assert find_whole(folder, "ppo")[0] is None
    assert find_whole(folder, "absent")[0] is None


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("", "cannot be read"),
        ('{"format": 9}', r"a newer muxrl \(format 9; this one reads up to 1\): update muxrl"),
        ('{"format": "x"}', "the format 'x', this muxrl reads 1 to 1; was it edited?"),
        ("[]", "TypeError"),
    ],
)
def test_a_broken_manifest_is_refused(folder: CheckpointFolder, text: str, story: str) -> None:
    place = write(folder, 120)
    (place / MANIFEST_FILE).write_text(text)
    with pytest.raises(CannotResume, match=story):
        Manifest.read(place)


def test_a_draft_does_not_count_as_a_checkpoint_and_is_removed(folder: CheckpointFolder) -> None:
    write(folder, 120)
    draft = folder.draft(200)
    (draft / "ppo").mkdir()
    assert folder.env_steps == [120]
    assert folder.draft(300) != draft
    assert not draft.exists()


def test_a_checkpoint_of_the_same_moment_replaces_the_first(folder: CheckpointFolder) -> None:
    write(folder, 120, "old")
    place = write(folder, 120, "new")
    assert (place / "ppo" / "deep" / "state.pkl").read_text() == "new"
    assert sorted(p.name for p in folder.path.iterdir()) == ["120", "last"]


def test_the_newest_and_the_best_are_kept(folder: CheckpointFolder) -> None:
    for env_steps in (5, 40, 300, 2_000):
        write(folder, env_steps)
        if env_steps == 5:
            folder.link(BEST, env_steps)
    folder.link(best_name(1), 40)
    folder.prune(1, keep=[300])
    assert folder.env_steps == [2_000, 300, 40, 5]
    folder.prune(1)
    assert folder.env_steps == [2_000, 40, 5]
    assert folder.names("ppo") == ["2000", "40", "5", "last", "best", "best-2"]
    assert folder.of_server("ppo", "best") == folder.path / "best" / "ppo"


def test_snapshots_are_the_first_checkpoints_from_each_multiple_on(
    folder: CheckpointFolder,
) -> None:
    for env_steps in (40, 103, 140, 199, 350, 380, 410):
        write(folder, env_steps)
        folder.prune(1, every=100)
    assert folder.snapshots(100) == [103, 350, 410]
    assert folder.env_steps == [410, 350, 103]
    assert folder.snapshots(None) == []


def test_drafts_of_a_killed_writer_are_removed_when_the_run_is_resumed(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for env_steps in (5, 40, 300):
        write(folder, env_steps)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            folder.prune(1)
    assert folder.env_steps == [300, 5]
    folder.set_aside(300)
    assert sorted(p.name for p in folder.path.iterdir()) == ["300", "5", "last"]


def test_last_is_found_without_links(folder: CheckpointFolder) -> None:
    write(folder, 5)
    write(folder, 40)
    (folder.path / "last").unlink()  # as in a copy by a tool that ignores links
    assert folder.of_server("ppo") == folder.path / "40" / "ppo"


def test_the_layout_of_0_1_is_found(folder: CheckpointFolder) -> None:
    for name in ("last", "4000_env_steps"):
        (folder.path / "ppo" / name).mkdir(parents=True)
    assert folder.of_server("ppo") == folder.path / "ppo" / "last"
    assert folder.of_server("ppo", "best") is None
    assert folder.names("ppo") == ["4000_env_steps", "last"]
    assert folder.env_steps == []


def test_a_checkpoint_that_was_being_replaced_is_put_back(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(folder, 100)
    rename = Path.rename

    def dies_after(self: Path, target: Path) -> Path:
        rename(self, target)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dies_after)
        with pytest.raises(SystemExit):
            write(folder, 100, "newer weights")
    assert not place.exists()
    folder.restore()
    assert (place / "ppo" / "deep" / "state.pkl").read_text() == "weights"
    assert folder.env_steps == [100]


def test_checkpoints_later_than_the_resumed_one_are_set_aside(folder: CheckpointFolder) -> None:
    write(folder, 80)
    write(folder, 120)
    folder.link(BEST, 120)
    folder.set_aside(80)
    assert folder.env_steps == [80]
    assert (folder.path / "last").readlink() == Path("80")
    assert not (folder.path / BEST).is_symlink()
    unused = folder.path / "120.unused"
    assert (unused / MANIFEST_FILE).exists()
    for env_steps, place in ((80, folder.path / "80"), (120, unused)):
        about = json.dumps({"written_at": float(env_steps)})
        (place / "ppo" / ABOUT_FILE).write_text(about, encoding="utf-8")
    found = find_newest(folder.path.parent, "ppo")
    assert found is not None
    assert found.resolve() == folder.path / "80" / "ppo"
    write(folder, 100)
    write(folder, 110)
    folder.prune(2)
    assert folder.env_steps == [110, 100]
