"""What trackers get of a row."""

from __future__ import annotations

import math

from muxrl.orchestrator.records.plan import Role
from muxrl.orchestrator.trackers.session import numbers


def test_a_server_s_numbers_have_its_name_and_their_path() -> None:
    record = {
        "env_steps": 10,
        "loss": math.nan,
        "episode_return_mean": None,
        "weights_seq_no": 3,
        "learner": {"team": {"qf_loss": 2.0, "env_steps": 8}},
    }
    assert numbers("prey", record) == {
        "prey/weights_seq_no": 3.0,
        "prey/learner/team/qf_loss": 2.0,
        "prey/learner/team/env_steps": 8.0,
    }


def test_what_is_no_number_is_left_out() -> None:
    record = {
        "env_steps": 20,
        "episode_return_mean": {"agent_0": -1.5},
        "restarted": ["prey"],
        "servers": {"prey": {"is_lost": True, "held_s": 0.25}, "wolves": {}},
    }
    assert numbers("joint", record) == {
        "joint/episode_return_mean/agent_0": -1.5,
        "joint/servers/prey/is_lost": 1.0,
        "joint/servers/prey/held_s": 0.25,
    }


def test_an_evaluation_is_its_means() -> None:
    record = {
        "env_steps": 20,
        "num_episodes": 2,
        "replaced": "prey",
        "returns": {"a": [1.0, 3.0], "b": []},
        "metrics": {"win": {"__common__": [1.0, None, 0.0]}, "fuel": {"a": [None]}},
    }
    assert numbers("evaluation", record) == {
        "evaluation/prey_random/a": 2.0,
        "evaluation/prey_random/metrics/win/__common__": 0.5,
    }
    everyone = {"env_steps": 0, "replaced": None, "returns": {"a": [5.0]}}
    assert numbers("evaluation", everyone) == {"evaluation/all_learned/a": 5.0}
    began = {"env_steps": 20, "replaced": "prey:untrained", "returns": {"a": [1.0]}}
    assert numbers("evaluation", began) == {"evaluation/prey_untrained/a": 1.0}
    side = {"env_steps": 20, "replaced": "both/left", "agents": ["a"], "returns": {"a": [2.0]}}
    assert numbers("evaluation", side) == {"evaluation/both_left_random/a": 2.0}


ROLES = [Role("wolves", "", ("wolf_0", "wolf_1")), Role("both", "left", ("left",))]


def test_the_run_s_returns_come_by_role_too_and_as_a_sum() -> None:
    means = {"wolf_0": 1.0, "wolf_1": 4.0, "left": None, "elsewhere": 9.0}
    found = numbers("joint", {"env_steps": 20, "episode_return_mean": means}, ROLES)
    assert {key: found[key] for key in found if "returns/" in key} == {
        "joint/returns/wolves": 2.5,
        "joint/returns/total": 5.0,
    }
    returns = {"wolf_0": [1.0, None], "wolf_1": [3.0, 5.0], "left": [-1.0, -2.0]}
    row = {"env_steps": 20, "replaced": "wolves", "returns": returns}
    at = "evaluation/wolves_random"
    assert numbers("evaluation", row, ROLES) == {
        f"{at}/wolf_0": 1.0,
        f"{at}/wolf_1": 4.0,
        f"{at}/left": -1.5,
        f"{at}/returns/wolves": 3.5,  # of 2 and 5: who was not there does not count
        f"{at}/returns/both/left": -1.5,
        f"{at}/returns/total": 3.0,
    }
    assert numbers("joint", {"env_steps": 0}, ROLES) == {}
    told = {"env_steps": 0, "episode_return_mean": means, "returns": {"wolves": 1.5, "both": 4.0}}
    found = numbers("joint", told, ROLES)
    assert found["joint/returns/wolves"] == 1.5, "as the run has counted it"
    assert (found["joint/returns/both"], found["joint/returns/total"]) == (4.0, 5.0)
    assert numbers("wolves", {"env_steps": 10, "episode_return_mean": 2.0}, ROLES) == {
        "wolves/episode_return_mean": 2.0
    }
