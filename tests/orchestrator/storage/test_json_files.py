import json
import os
from pathlib import Path

import numpy as np
import pytest

from muxrl.orchestrator.storage.json_files import finite, write_json, write_whole


def test_nan_infinities_and_numpy_become_plain_json() -> None:
    value = {"a": float("nan"), "b": [np.float32(1.5), -np.inf], 3: np.arange(2), "d": (True, None)}
    assert finite(value) == {"a": None, "b": [1.5, None], "3": [0, 1], "d": [True, None]}


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"old": 1})

    def write_half(temporary: Path) -> None:
        temporary.write_text('{"ne')
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_whole(path, write_half)
    with pytest.raises(TypeError):
        write_json(path, {"not json": object()})
    assert json.loads(path.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_an_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def fill(temporary: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*a\.json'"):
        write_whole(tmp_path / "a.json", fill)


def test_a_reader_of_the_old_file_can_read_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"old": 1})
    with path.open() as opened:
        write_json(path, {"new": 2})
        assert json.load(opened) == {"old": 1}
    assert json.loads(path.read_text()) == {"new": 2}
