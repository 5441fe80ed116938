"""Paths that are not there yet: nothing is ever written over."""

from pathlib import Path

from muxrl.orchestrator.records.next_path import make_next_folder, next_path


def test_numbers_begin_at_two_and_skip_what_is_there(tmp_path: Path) -> None:
    assert next_path(tmp_path, "a", ".json") == tmp_path / "a.json"
    (tmp_path / "a.json").touch()
    (tmp_path / "a-2.json").touch()
    assert next_path(tmp_path, "a", ".json") == tmp_path / "a-3.json"


def test_a_dot_in_the_name_is_no_suffix(tmp_path: Path) -> None:
    made = [make_next_folder(tmp_path / "runs", "lr-0.1") for _ in range(3)]
    assert [path.name for path in made] == ["lr-0.1", "lr-0.1-2", "lr-0.1-3"]
