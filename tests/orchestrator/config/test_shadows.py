"""Which servers act, which server each shadow learns from, and which shadows are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.config import (
    ConfigError,
    ExperimentConfig,
    checks,
    load_config,
    prepare,
)
from muxrl.orchestrator.config.schema import BestConfig, SimulationConfig
from muxrl.orchestrator.config.shadows import acting, find_problems, shadows


def config(**servers: dict[str, Any]) -> ExperimentConfig:
    simulation = {"env": "gymnasium:CartPole-v1"}
    return load_config({"simulation": simulation, "servers": servers, "stop": {"env_steps": 100}})


DQN = {"algorithm": "DQN", "agents": ["agent"]}
SAC = {"algorithm": "SAC", "shadow": "dqn"}


def test_a_shadow_has_the_agents_of_its_server_and_acts_for_none() -> None:
    experiment = prepare(config(sac=SAC, dqn=DQN, again=SAC))
    shadows = {s: plan.shadow for s, plan in experiment.servers.items()}
    assert shadows == {"sac": "dqn", "dqn": "", "again": "dqn"}
    assert all([*plan.agents] == ["agent"] for plan in experiment.servers.values())
    assert experiment.acting.keys() == {"dqn"}
    assert experiment.assignment == "dqn:agent"


def test_a_promoted_shadow_acts_and_others_follow_it() -> None:
    experiment = prepare(config(dqn=DQN | {"replace_by": "sac"}, sac=SAC, again=SAC))
    assert {s: plan.shadow for s, plan in experiment.servers.items()} == {"sac": "", "again": "sac"}
    assert experiment.assignment == "sac:agent"
    twice = config(dqn=DQN | {"replace_by": "sac"}, sac=SAC | {"replace_by": "again"}, again=SAC)
    assert prepare(twice).servers.keys() == {"again"}


@given(st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=4, max_size=4))
def test_exactly_one_server_acts_after_any_promotions(replaced_by: list[str]) -> None:
    names = ["a", "b", "c", "d"]
    tried = config(
        **{name: {"shadow": "a"} if name != "a" else {"agents": ["agent"]} for name in names}
    )
    for name, other in zip(names, replaced_by, strict=True):
        tried.servers[name].replace_by = other
    if not [*find_problems(tried)]:
        (acts,) = acting(tried)
        assert not tried.servers[acts].replace_by
        gone = {name for name, other in zip(names, replaced_by, strict=True) if other}
        assert shadows(tried) == dict.fromkeys(sorted({*names} - gone - {acts}), acts)


@pytest.mark.parametrize(
    ("sac", "problem"),
    [
        (
            {"shadow": "dq"},
            "servers.sac.shadow: there is no server 'dq' that acts; did you mean 'dqn'?",
        ),
        ({"shadow": "sac"}, "servers.sac.shadow: there is no server 'sac' that acts"),
        ({"agents": ["agent"]}, "servers.sac.agents: are given, but a shadow learns from the ag"),
        ({"on_server_loss": "random"}, "servers.sac.on_server_loss: is 'random', but a shadow"),
        ({"algorithm": "A2C"}, "'sac': is a shadow, and A2C cannot learn from actions that others"),
        ({"algorithm": "PPO"}, "with a replay can: DQN, IQL, MADDPG, MASAC, QMIX, QPLEX, SAC"),
        ({"algorithm": "IMPALA"}, "without their probabilities, which DQN does not give; those th"),
        ({"algorithm": "RANDOM"}, "'sac': is a shadow, and RANDOM cannot learn from actions"),
    ],
)
def test_invalid_shadows_are_refused(sac: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(config(dqn=DQN, sac=SAC | sac))
    assert problem in str(refused.value)


V_TRACE = {"algorithm": "APPO", "shadow": "ppo"}
PPO = {"algorithm": "PPO", "agents": ["agent"]}


@pytest.mark.parametrize("name", ["PPO", "A2C", "MAPPO", "IMPALA", "RLLIB_PPO"])
def test_v_trace_shadows_learn_from_servers_that_give_log_probabilities(name: str) -> None:
    for shadow in ("IMPALA", "APPO", "RLLIB_IMPALA"):
        tried = config(ppo=PPO | {"algorithm": name}, appo=V_TRACE | {"algorithm": shadow})
        assert prepare(tried).servers["appo"].shadow == "ppo"


def test_v_trace_needs_discrete_actions_and_a_server_that_acts() -> None:
    tried = config(ppo=PPO, appo=V_TRACE)
    tried.simulation.inference_mode = "local"
    with pytest.raises(ConfigError, match="which are not given with simulation"):
        prepare(tried)
    tried.simulation = SimulationConfig("gymnasium:Pendulum-v1")
    with pytest.raises(ConfigError, match="which are given of discrete actions only"):
        prepare(tried)


def test_a_promotion_is_refused_with_the_overrides_that_it_needs() -> None:
    tried = config(dqn=DQN | {"replace_by": "sac"}, sac=SAC)
    tried.stop.episode_return = {"dqn": 9.0}
    tried.checkpoint.best, tried.evaluation.interval_env_steps = BestConfig("dqn"), 10
    tried.simulation.inference_mode = {"dqn": "remote"}
    lessons = {"lessons": [1, 2], "next_when": {"metric": "return", "of": "dqn", "at_least": 1}}
    tried.simulation.parameters = {"size": lessons}
    told = [problem.partition("; add ") for problem in checks.find_problems(tried)]
    assert [problem for problem, _, _ in told] == [
        "simulation.inference_mode: names 'dqn', which 'sac' has replaced",
        "simulation.parameters.size.next_when.of: is 'dqn', which 'sac' has replaced",
        "stop.episode_return: names 'dqn', which 'sac' has replaced",
        "checkpoint.best.of: is 'dqn', which 'sac' has replaced",
    ]
    mended = load_config(tried, [item for _, _, add in told for item in add.split(" ")])
    assert not checks.find_problems(mended)
    assert mended.stop.episode_return == {"sac": 9.0}
    assert mended.simulation.inference_mode == {"sac": "remote"}
    assert mended.simulation.parameters["size"]["next_when"] == lessons["next_when"] | {"of": "sac"}


def test_other_keys_that_name_a_shadow_are_refused() -> None:
    tried = config(dqn=DQN | {"replace_by": "pac"}, sac=SAC)
    tried.stop.episode_return, tried.checkpoint.best = {"sac": 1.0}, BestConfig("sac")
    tried.simulation.inference_mode = {"sac": "remote"}
    tried.evaluation.interval_env_steps = 10
    assert checks.find_problems(tried) == [
        "simulation.inference_mode: names 'sac', a shadow, which does not act; name one of dqn",
        "servers.dqn.replace_by: 'pac' is not a shadow of 'dqn'; its shadows are sac",
        "stop.episode_return: names 'sac', a shadow, which does not act; name one of dqn",
        "checkpoint.best.of: names 'sac', a shadow, which does not act; name one of dqn",
    ]
