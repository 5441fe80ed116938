"""Networks of one's own, and spaces that an algorithm cannot do: told before anything starts."""

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
from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete, Space
from muxrl.servers.config import ServerConfig, ServerPlan

OWN = "muxrl.experiments.examples.own_module:SharedTrunk"
INTEGERS = Box((2,), "int32", -(2**31), 2**31 - 1)  # as Gymnasium's without bounds
DIALS = Box((2,), "float32", 2.0, 10.0)


def plan_of(algorithm: str, acts: Space, **server: Any) -> ServerPlan:
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"s": ServerConfig(algorithm=algorithm, agents=["*"], **server)},
        stop=StopConfig(env_steps=10),
    )
    return resolve(config, SimulationFacts({"a": (Box((4,)), acts)}, None)).servers["s"]


def test_a_module_of_ones_own_is_part_of_the_plan() -> None:
    plan = plan_of("RLLIB_PPO", Discrete(2), rl_module=OWN, model={"width": 8})
    assert (plan.rl_module, plan.model) == (OWN, {"width": 8})
    assert plan_of("A2C", Discrete(2)).rl_module == ""


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "SAC", "IMPALA", "APPO"])
def test_continuous_actions_with_bounds(algorithm: str) -> None:
    assert plan_of(algorithm, DIALS).agents["a"].action_space == DIALS


def test_integers_with_bounds_are_choices() -> None:
    for space in (INTEGERS, Box((2,), "int32")):
        given = plan_of("DQN", space, action_bounds=[0, 3]).agents["a"].action_space
        assert given == Box((2,), "int32", 0.0, 3.0) or given.low == [0.0, 0.0]


@pytest.mark.parametrize(
    ("algorithm", "acts", "server", "message"),
    [
        ("RANDOM", Discrete(2), {"rl_module": OWN}, "RANDOM has no networks of its own; leave"),
        ("QMIX", Discrete(2), {"rl_module": OWN}, "QMIX cannot take an RLModule of your own"),
        ("PPO", Discrete(2), {"rl_module": OWN}, "PPO makes its networks itself; .*RLLIB_PPO$"),
        ("RLLIB_PPO", Discrete(2), {"rl_module": "nowhere:X"}, "cannot be imported: ModuleNotF"),
        ("DQN", DIALS, {}, "DQN cannot do the action space Box.* of agent 'a': it takes Disc"),
        (
            "SAC",
            MultiDiscrete((40, 40)),
            {},
            r"SAC cannot do .* use A2C, APPO, IMPALA, PPO, HAPPO, MAPPO$",
        ),
        ("DQN", MultiDiscrete((40, 40)), {}, r"DQN cannot do .*; use A2C, APPO, IMPALA, PPO, H"),
        # What learns from the same data for the same units comes first; all are named.
        ("DQN", DIALS, {}, "use SAC, A2C, APPO, IMPALA, PPO, HAPPO, MAPPO, MADDPG, MASAC$"),
        ("MASAC", Discrete(2), {}, "use IQL, MADDPG, QMIX, QPLEX, VDN, HAPPO, .*, PPO$"),
        ("DQN", INTEGERS, {}, "it takes Discrete; integers with bounds are choices: give the Box"),
        ("QMIX", INTEGERS, {}, "1024; integers with bounds are choices: give the Box its own, or"),
        (
            "DQN",
            Discrete(2),
            {"settings": {"clip_param": 0.1}},
            r"no setting 'clip_param'; it is one of APPO, HAPPO, MAPPO, PPO; if it is inherited, "
            r"servers.s.settings=\{\}, in a file settings: \{\}, clears such settings$",
        ),
        ("RANDOM", Discrete(2), {"settings": {"lr": 0.1}}, "none; it is one of A2C, APPO, DQN"),
        ("FROZEN", Discrete(2), {"settings": {"checkpoint": ["a", "b"]}}, "; POOL draws one of"),
        ("DQN", Discrete(2), {"settings": {"dueling": "true"}}, "leave out the quotes: true"),
        (
            "MASAC",
            MultiDiscrete((2, 3)),
            {},
            r"MultiDiscrete\(\[2 3\]\), which is Discrete\(6\) to",
        ),
        ("QMIX", DIALS, {}, r"QMIX cannot do .*; use MADDPG, MASAC, HAPPO, MAPPO, SAC"),
        ("MASAC", MultiDiscrete((40, 40)), {}, r"MASAC cannot do .*; use HAPPO, MAPPO, A2C, APPO"),
        ("SAC", Box((2,)), {}, "SAC cannot do .* it has no bounds"),
        ("CQL", Discrete(2), {}, "algorithm 'CQL' learns from recorded data only"),
        ("DQN", Discrete(2), {"settings": {"epsilonn": 1}}, "DQN has no setting 'epsilonn'"),
        ("DQN", Discrete(2), {"model": {"use_lstm": True}}, "'use_lstm': its replay draws"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    algorithm: str, acts: Space, server: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(algorithm, acts, **server)
    assert str(caught.value).count("server 's'") == 1
