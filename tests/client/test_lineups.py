"""How a step is split by server, once for each set of agents."""

from __future__ import annotations

import numpy as np
from tests.client.scripted_servers import spec

from muxrl.client.lineups import Lineups, cells, index_of


def lineups() -> Lineups:
    return Lineups({"left": spec("left", "abcd"), "right": spec("right", "efg")})


def test_the_same_agents_in_another_order_are_split_alike() -> None:
    known = lineups()
    split, seen = known.find({"f": 1, "a": 2, "c": 3})
    assert known.find({"c": 3, "a": 2, "f": 1})[0] is split
    assert split.agents == ("a", "c", "f")
    assert [part.agents for part in split.parts] == [("a", "c"), ("f",)]
    assert [part.named for part in split.parts] == [["a", "c"], ["f"]]
    assert seen == {"f": 1, "a": 2, "c": 3}
    whole, _ = known.find(dict.fromkeys("gfedcba"))
    assert whole.is_of_all
    assert [part.named for part in whole.parts] == [[], []]


def test_its_columns_are_those_of_its_agents() -> None:
    split, _ = lineups().find({"f": 1, "a": 2, "c": 3})
    table = np.arange(7)[None]
    assert table[0, split.columns].tolist() == [0, 2, 5]
    left, right = split.parts
    assert [table[0, i].tolist() for i in (left.columns, left.others, left.whole)] == [
        [0, 2], [1, 3], [0, 1, 2, 3]
    ]  # fmt: skip
    assert [table[0, i].tolist() for i in (right.columns, right.others)] == [[5], [4, 6]]
    assert split.wholes == [slice(0, 7)]


def test_a_server_without_agents_is_idle() -> None:
    split, _ = lineups().find({"e": 1})
    assert split.idle == [0]
    assert [part.server_id for part in split.parts] == ["right"]


def test_combinations_without_end_are_forgotten() -> None:
    many = Lineups({"left": spec("left", [f"driver_{i}" for i in range(1_500)])})
    for i in range(1_500):
        many.find({f"driver_{i}": 0})
    assert len(many.known) < 1_500


def test_indices_in_a_row_are_a_slice() -> None:
    assert index_of([3, 4, 5]) == slice(3, 6)
    assert index_of([7]) == slice(7, 8)
    table = np.arange(12).reshape(3, 4)
    assert table[cells(index_of([0, 2]), index_of([1, 3]))].tolist() == [[1, 3], [9, 11]]
    assert table[cells(index_of([0, 2]), index_of([1, 2]))].tolist() == [[1, 2], [9, 10]]
