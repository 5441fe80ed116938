"""In what two configs differ, by the dotted keys that people read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muxrl.orchestrator.config import ExperimentConfig, StopConfig
from muxrl.orchestrator.config.merge import diff, flat


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


def test_dataclasses_are_compared_by_their_fields() -> None:
    config = ExperimentConfig(stop=StopConfig(env_steps=5))
    other = replace(config, stop=StopConfig(env_steps=6, episode_return={"a": 1.0}))
    assert diff(config, other) == ["stop.env_steps", "stop.episode_return.a"]
    assert flat(other)["stop.episode_return.a"] == 1.0
