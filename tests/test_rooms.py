"""Each folder of `tests/` has the name of the folder that it tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("client", "experiments", "orchestrator", "protocol", "servers")


def test_each_folder_of_tests_has_its_room() -> None:
    folders = {path.parent for room in ROOMS for path in (ROOT / "tests" / room).rglob("*.py")}
    assert folders
    strangers = [f for f in sorted(folders) if not (ROOT / f.relative_to(ROOT / "tests")).is_dir()]
    assert not strangers
