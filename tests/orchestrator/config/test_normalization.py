"""What is scaled, normalised or stacked is in a server's plan, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from muxrl.orchestrator.config import (
    ExperimentConfig,
    SimulationConfig,
    SimulationFacts,
    StopConfig,
    resolve,
)
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.config import ServerConfig, ServerPlan

IMAGE = Box((84, 84, 4), "uint8", 0, 255)
NUMBERS = Box((4,))
BOUNDED = Box((4,), "float32", 0.0, 100.0)


def plan_of(algorithm: str, sees: Space, **server: Any) -> ServerPlan:
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"s": ServerConfig(algorithm=algorithm, agents=["*"], **server)},
        stop=StopConfig(env_steps=10),
    )
    return resolve(config, SimulationFacts({"a": (sees, Discrete(2))}, None)).servers["s"]


@pytest.mark.parametrize(
    ("sees", "given", "expected"),
    [
        (IMAGE, "images", "images"),
        (IMAGE, "bounded", "bounded"),
        (IMAGE, "none", "none"),
        (BOUNDED, "images", "none"),
        (BOUNDED, "bounded", "bounded"),
    ],
)
def test_a_plan_says_what_is_scaled_if_anything_is(sees: Box, given: Any, expected: str) -> None:
    assert plan_of("PPO", sees, scale_observations=given).scale_observations == expected


def test_by_default_images_are_scaled_and_nothing_is_normalised() -> None:
    plan = plan_of("DQN", IMAGE)
    assert plan.scale_observations == "images"
    assert not plan.normalize_observations
    assert not plan.normalize_rewards
    assert plan.frame_stack == 1
    assert plan_of("DQN", IMAGE, frame_stack=4).frame_stack == 4
    assert plan_of("RANDOM", IMAGE).scale_observations == "none"


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "MAPPO", "HAPPO"])
def test_on_policy_algorithms_take_normalised_rewards(algorithm: str) -> None:
    plan = plan_of(algorithm, NUMBERS, normalize_rewards=True, normalize_observations=True)
    assert plan.normalize_rewards
    assert plan.normalize_observations


@pytest.mark.parametrize(
    ("algorithm", "sees", "server", "message"),
    [
        ("PPO", NUMBERS, {"scale_observations": "bounded"}, "no observation of its agents has bo"),
        ("RANDOM", IMAGE, {"scale_observations": "bounded"}, "RANDOM does not learn: FROZEN reads"),
        ("DQN", NUMBERS, {"normalize_rewards": True}, "DQN learns from rewards of earlier polic"),
        ("IMPALA", NUMBERS, {"normalize_rewards": True}, "use one of A2C, HAPPO, MAPPO, PPO"),
        ("PPO", Discrete(3), {"normalize_observations": True}, r"no numbers \(Discrete\(3\)\)"),
        ("RANDOM", NUMBERS, {"normalize_observations": True}, "leave out normalize_observations"),
        ("RANDOM", NUMBERS, {"frame_stack": 2}, "RANDOM has no networks that frames could be"),
        ("PPO", NUMBERS, {"frame_stack": 0}, "has frame_stack: 0, and a network reads at least"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    algorithm: str, sees: Space, server: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(algorithm, sees, **server)
