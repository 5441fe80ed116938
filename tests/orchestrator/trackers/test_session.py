"""What trackers get of a row."""

from __future__ import annotations

import math

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
