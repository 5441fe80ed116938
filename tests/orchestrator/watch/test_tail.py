"""A growing file's records are read once each, in whatever pieces they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.records import metrics as metrics_module
from muxrl.orchestrator.records.metrics import iter_rows, last_rows
from muxrl.orchestrator.watch import tail as tail_module
from muxrl.orchestrator.watch.tail import Tail


class Records(list[Any]):
    """The rows that a tail has read since it last began."""

    add = list.append


def lines(numbers: list[int]) -> bytes:
    return b"".join(json.dumps({"n": n}).encode() + b"\n" for n in numbers)


@given(cuts=st.lists(st.integers(0, 200), max_size=8), size=st.integers(0, 20))
def test_each_record_is_read_once_in_whatever_pieces_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], size: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "joint.jsonl"
    tail, content = Tail(path, Records), lines(list(range(size)))
    tail.read()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(content)], strict=True):
        with path.open("ab") as file:
            file.write(content[begin:end])
        tail.read()
    assert tail.rows == [{"n": n} for n in range(size)]
    assert tail.problem == ""


@given(
    lengths=st.lists(st.integers(-1, 300), max_size=12),
    torn=st.integers(0, 300),
    size=st.integers(1, 300),
)
def test_all_readers_find_the_same_rows_of_any_length(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], torn: int, size: int
) -> None:
    """Lines (-1: an empty one) may be longer than one read; the last is torn, even at its end."""
    rows = [{"n": "x" * length} for length in lengths if length >= 0]
    whole = [json.dumps({"n": "x" * length}) if length >= 0 else " " for length in lengths]
    path = tmp_path_factory.mktemp("readers") / "joint.jsonl"
    path.write_text("".join(f"{line}\n" for line in whole) + json.dumps({"n": "x" * 291})[:torn])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_module, "_CHUNK_BYTES", size)
        patch.setattr(tail_module, "_CHUNK_BYTES", size)
        tail = Tail(path, Records)
        num_reads = 1
        while tail.read():
            num_reads += 1
        assert list(iter_rows(path, dict)) == tail.rows == rows
        assert list(last_rows(path, dict)) == rows[::-1]
    assert tail.problem == ""
    assert num_reads <= 1 + path.stat().st_size // size


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("again", [[], [7], list(range(20, 40))])
def test_a_file_that_was_cut_back_is_read_anew(tmp_path: Path, kept: int, again: list[int]) -> None:
    """A resumed run cuts files back; afterwards they may be shorter or longer than before."""
    path = tmp_path / "joint.jsonl"
    path.write_bytes(lines([0, 1, 2, 3, 4]))
    tail = Tail(path, Records)
    tail.read()
    path.write_bytes(lines([*range(kept), *again]))
    tail.read()
    assert tail.rows == [{"n": n} for n in [*range(kept), *again]]
    path.unlink()
    tail.read()
    assert tail.rows == []


@pytest.mark.parametrize("broken", [b"{", b"[]", b'"n"', b"\xff\xfe", b"\x00\x00"])
def test_a_broken_line_is_named_and_left_out(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "joint.jsonl"
    path.write_bytes(lines([1]) + broken + b"\n" + lines([2]))
    tail = Tail(path, Records)
    tail.read()
    assert tail.rows == [{"n": 1}, {"n": 2}]
    assert f"{path}, line 2, is not a JSON object" in tail.problem
