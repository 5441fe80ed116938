"""The numbers that trackers get of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from muxrl.orchestrator.records.plan import Role
from muxrl.orchestrator.trackers.session import numbers

ROLES = [Role("wolves", "", ("wolf_0", "wolf_1")), Role("both", "left", ("left",))]
MEANS = {"wolf_0": 1.0, "wolf_1": 4.0, "left": None, "elsewhere": 9.0}
RETURNS = {"wolf_0": [1.0, None], "wolf_1": [3.0, 5.0], "left": [-1.0, -2.0]}
WON = {"win": {"__common__": [1.0, None, 0.0]}, "fuel": {"a": [None]}}
STATES = {"prey": {"is_lost": True, "held_s": 0.25}, "wolves": {}}


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (
            "prey",
            {
                "loss": math.nan,
                "weights_seq_no": 3,
                "learner": {"team": {"q": 2.0, "env_steps": 8}},
            },
            {"weights_seq_no": 3.0, "learner/team/q": 2.0, "learner/team/env_steps": 8.0},
        ),
        ("wolves", {"episode_return_mean": 2.0}, {"episode_return_mean": 2.0}),
        (
            "joint",
            {"restarted": ["prey"], "servers": STATES},
            {"servers/prey/is_lost": 1.0, "servers/prey/held_s": 0.25},
        ),
        (
            "joint",
            {"episode_return_mean": MEANS},
            {f"episode_return_mean/{agent}": mean for agent, mean in MEANS.items() if mean}
            | {"returns/wolves": 2.5, "returns/total": 5.0},
        ),
        (  # the return as the run has counted it
            "joint",
            {"episode_return_mean": {"wolf_0": 1.0}, "returns": {"wolves": 1.5}},
            {"episode_return_mean/wolf_0": 1.0, "returns/wolves": 1.5, "returns/total": 1.0},
        ),
        (
            "evaluation",
            {"replaced": "prey", "returns": {"a": [1.0, 3.0], "b": []}, "metrics": WON},
            {"prey_random/a": 2.0, "prey_random/metrics/win/__common__": 0.5},
        ),
        ("evaluation", {"replaced": None, "returns": {"a": [5.0]}}, {"all_learned/a": 5.0}),
        (
            "evaluation",
            {"replaced": "wolves", "returns": RETURNS},
            {
                **{"wolves_random/wolf_0": 1.0, "wolves_random/wolf_1": 4.0},
                # The mean of 2 and 5: absent agents do not count.
                **{"wolves_random/left": -1.5, "wolves_random/returns/wolves": 3.5},
                **{"wolves_random/returns/both/left": -1.5, "wolves_random/returns/total": 3.0},
            },
        ),
    ],
)
def test_numbers_are_named_by_their_path_and_missing_ones_left_out(
    name: str, row: Mapping[str, Any], expected: Mapping[str, float]
) -> None:
    """Returns are given by role, too, and as a sum; `test_conditions` has conditions' names."""
    expected = {f"{name}/{path}": number for path, number in expected.items()}
    assert numbers(name, {"env_steps": 20, **row}, ROLES) == expected
