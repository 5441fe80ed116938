"""Statistics of evaluation episodes are as computed by hand."""

import dataclasses
import math

import numpy as np
import pytest
from rich.console import Console

from muxrl.orchestrator.evaluations.evaluated import print_evaluation, returns_of, roles_by_name
from muxrl.orchestrator.measure.statistics import mean_interval


def test_mean_is_over_agents_then_episodes_and_the_total_is_their_sum():
    returns = {"a": [1.0, 2.0, 3.0, 10.0], "b": [3.0, 4.0, 5.0, 12.0], "c": [9.0] * 4}
    found = returns_of(returns, ["a", "b"])
    assert found.agents == ("a", "b")
    assert found.estimate == mean_interval([[2.0, 3.0, 4.0, 11.0]])
    assert (found.mean, found.low, found.high) == (5.0, found.estimate.low, found.estimate.high)
    assert found.total.mean == 10.0
    assert found.deviation == pytest.approx(np.std([2, 3, 4, 11], ddof=1))
    assert found.interquartile_mean == 3.5


def test_an_agent_that_was_not_there_does_not_count():
    found = returns_of({"a": [1.0, None, None], "b": [3.0, 5.0, None]}, ["a", "b"])
    assert found.mean == 3.5  # the mean of 2 and 5
    assert found.total.mean == 4.5  # the mean of 4 and 5
    with pytest.raises(ValueError, match="no episode had any of the agents c, d"):
        returns_of({"c": [None], "d": [None]}, ["c", "d"])


def test_one_episode_has_no_interval():
    found = returns_of({"a": [2.0]}, ["a"])
    assert found.mean == 2.0
    assert (found.low, found.high, found.deviation) == (None, None, None)
    assert math.isnan(found.estimate.low)


@pytest.mark.parametrize(
    ("agents", "roles"),
    [
        ("wolf_0, wolf_1, sheep_0, dog", "wolf wolf sheep dog"),
        ("car1, car12, bus-3", "car car bus"),
        ("agent_0, agent_1", ""),  # with a single role, the roles would repeat all agents
        ("left, right", ""),  # with a role for each agent, the roles would repeat the agents
        ("0, 1, x", ""),
        ("agent.1, agent.2, boss.1", "agent agent boss"),
        ("car 1, car 2, bus 1", "car car bus"),
        ("unit_2_1, unit_2_2, unit_3_1", "unit_2 unit_2 unit_3"),
        ("red1_1, red1_2, blue1_1", "red1 red1 blue1"),
    ],
)
def test_roles_are_agents_names_without_their_numbers(agents, roles):
    role_of = {
        a: role for role, theirs in roles_by_name(agents.split(", ")).items() for a in theirs
    }
    assert role_of == (dict(zip(agents.split(", "), roles.split(), strict=True)) if roles else {})


def test_the_table_shows_everybody_once(capsys, evaluation_result):
    print_evaluation(evaluation_result)
    out = capsys.readouterr().out
    for word in ("wolves QMIX", "greedy", "sheep PPO", "sampled", "wolf_1", "2.00", "all agents"):
        assert word in out
    assert "wolves/pack" not in out  # its agents are the same as the server's
    assert "In the place of sheep: random." in " ".join(out.split())
    assert "2 episodes, seeds 5 to 6" in " ".join(out.split())


# In this result, sheep are served by another server.
@pytest.mark.parametrize("server_id", ["wolves", "sheep"])
def test_the_table_says_that_a_script_s_module_begins_anew(server_id, capsys, evaluation_result):
    server = dataclasses.replace(evaluation_result.servers[server_id], algorithm="SCRIPTED")
    servers = {**evaluation_result.servers, server_id: server}
    print_evaluation(dataclasses.replace(evaluation_result, servers=servers))
    said = f"The modules of {server_id} begin without what they remembered in the run."
    assert (said in " ".join(capsys.readouterr().out.split())) is (server_id == "wolves")


def test_names_are_not_broken_in_80_columns(capsys, evaluation_result):
    wide = returns_of({"wolf_0": (-1234.5, 1234.5), "wolf_1": (-1.0, 1.0)}, ["wolf_0", "wolf_1"])
    metrics = {"episode_length": wide}
    print_evaluation(dataclasses.replace(evaluation_result, metrics=metrics), Console(width=80))
    assert "episode_length" in capsys.readouterr().out


@pytest.fixture
def evaluation_result():
    from muxrl.orchestrator.evaluations.evaluated import EvaluatedServer, EvaluationResult

    returns = {"wolf_0": (1.0, 2.0), "wolf_1": (3.0, 2.0), "sheep": (-1.0, 0.0)}

    def of(*agents):
        return returns_of(returns, agents)

    pack = of("wolf_0", "wolf_1")
    return EvaluationResult(
        run="tag",
        assignment="qmix:wolf_0,wolf_1|ppo:sheep",
        seeds=(5, 6),
        num_steps=(10, 10),
        episode_returns=returns,
        servers={
            "wolves": EvaluatedServer("QMIX", "greedy", "checkpoints/wolves/last", pack),
            "sheep": EvaluatedServer("PPO", "sampled", "", of("sheep")),
        },
        agents={agent: of(agent) for agent in returns},
        groups={"wolves/pack": pack},
        roles={"wolf": pack, "sheep": of("sheep")},
        everybody=of(*returns),
        replaced={"sheep": "random"},
    )


def test_a_metric_of_several_agents_has_no_total(capsys, evaluation_result):
    six = {f"a{i}": [10.0, 10.0] for i in range(6)}
    metrics = {"orders_done/wolves": returns_of(six, list(six))}
    print_evaluation(dataclasses.replace(evaluation_result, metrics=metrics))
    out = capsys.readouterr().out
    assert "10.00" in out
    assert "60.00" not in out


def test_returns_of_wins_and_losses_are_proportions() -> None:
    """After 19 wins in 20 games the interval ends below 1; returns of three games may be counts."""
    won = returns_of({"x": [1.0] * 19 + [0.0]}, ["x"])
    assert 0.99 < won.high < 1.0
    few = returns_of({"x": [1.0, 1.0, 0.0]}, ["x"])
    assert few.high > 1.0
