"""A server on both sides of a game is judged side by side, against random and untrained agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from muxrl.client import RefusedByServer
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, load_config
from muxrl.orchestrator.launch.evaluation import final_conditions
from muxrl.orchestrator.launch.in_process import Served, serve
from muxrl.orchestrator.measure.sides import find_sides
from muxrl.orchestrator.records.conditions import AS_LEARNED, Condition
from muxrl.orchestrator.supervise.episodes import returns_by_agent

NUM_EPISODES = 20
T = 8
"""The number of steps in an episode."""


def config(**evaluation: bool) -> ExperimentConfig:
    settings = {"train_batch_size_per_learner": 160, "minibatch_size": 80, "num_epochs": 8}
    server = {"agents": ["*"], "settings": {**settings, "lr": 0.01}}
    return load_config(
        {
            "simulation": {"env": "tests.orchestrator.launch.duel:Duel"},
            "servers": {"both": {**server, "model": {"fcnet_hiddens": [16]}}},
            "evaluation": evaluation,
        }
    )


Played = dict[str | None, Mapping[str, np.ndarray]]


def play(served: Served, condition: Condition) -> Mapping[str, np.ndarray]:
    episodes = served.evaluate(NUM_EPISODES, replaced=condition)
    returns = returns_by_agent(episodes, ["left", "right"])
    return {agent: np.array(values, float) for agent, values in returns.items()}


@pytest.fixture(scope="module")
def played(rllib: None) -> Iterator[Played]:
    """Gives the returns of a final evaluation after a few updates, by condition.

    "before" has the returns before training.
    """
    with serve(config()) as served:
        found = {"before": play(served, AS_LEARNED)}
        simulations = [served.simulation() for _ in range(4)]
        with served.client() as client:
            EnvLoop(simulations, client, seeds=iter(range(200))).run()
        served.check()
        server = served.servers["both"]
        server.finish_training()
        assert server.status().weights_seq_no >= 8
        found[None] = play(served, AS_LEARNED)
        found["both"] = play(served, Condition("both"))
        returns = {
            key: {agent: list(values) for agent, values in found[key].items()}
            for key in (None, "both")
        }
        plans = {"both": server.plan}
        for condition in final_conditions(returns, plans, plans):
            found[condition.key] = play(served, condition)
        yield found


def test_each_side_is_replaced_alone(played: Played) -> None:
    untrained = {f"both/{side}:untrained" for side in ("left", "right")}
    assert played.keys() == {"before", None, "both", "both/left", "both/right", *untrained}


def test_a_side_returns_more_against_random_agents_once_it_has_learned(played: Played) -> None:
    """A trained policy plays 2, random agents 1 in the mean."""
    for side, other in (("left", "right"), ("right", "left")):
        returns = played[f"both/{side}"]
        assert returns[other].mean() > 0.75 * T
        assert (played[None][side] - returns[side]).mean() > 0.75 * T
        assert np.ptp(returns[side]) > 0  # random agents differ from episode to episode


def test_untrained_agents_on_one_side_act_as_before_training(played: Played) -> None:
    """Let A and B be the sums of both sides' actions before training, A' and B' those after it.

    Then the left side returns A - B, A' - B', A - B' (left untrained) and A' - B (right untrained).
    """
    assert any(played["before"]["left"] != played[None]["left"])
    found = played["both/left:untrained"]["left"] + played["both/right:untrained"]["left"]
    assert (found == played["before"]["left"] + played[None]["left"]).all()
    assert (played["both/left:untrained"]["left"] < played["both/right:untrained"]["left"]).any()


def test_without_training_untrained_agents_play_the_same_episodes(rllib: None) -> None:
    with serve(config()) as served:
        expected = play(served, AS_LEARNED)
        for condition in (
            Condition("both", is_untrained=True),
            Condition("both", "left", ("left",), is_untrained=True),
        ):
            found = play(served, condition)
            assert all((found[a] == expected[a]).all() for a in expected), condition
        assert find_sides([{a: list(v) for a, v in expected.items()}], ["left", "right"])


def test_weights_are_kept_only_where_they_are_compared(rllib: None) -> None:
    with serve(config(should_compare_untrained=False)) as served:
        assert not served.servers["both"].plan.keeps_untrained
        with (
            served.client(Condition("both", is_untrained=True)) as client,
            pytest.raises(RefusedByServer, match="has not kept the weights"),
        ):
            client.start_episode(training_enabled=False)
