"""In what two configs differ, by the dotted keys that people read."""

from __future__ import annotations

from typing import Any

import pytest

from muxrl.orchestrator.config.merge import diff


@pytest.mark.parametrize(
    ("ours", "theirs", "keys"),
    [
        ({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 1, "c": [1, 3]}}, ["a.c"]),
        ({"a": {}}, {"a": {"b": 1}}, ["a.b"]),
        ({"a": None}, {"a": {"b": 1}}, ["a.b"]),
        ({"a": None}, {}, []),
        ({"a": 1}, {"b": 0}, ["a", "b"]),
    ],
)
def test_what_differs_is_named_whichever_comes_first(
    ours: dict[str, Any], theirs: dict[str, Any], keys: list[str]
) -> None:
    assert diff(ours, theirs) == keys
    assert set(diff(theirs, ours)) == set(keys)
