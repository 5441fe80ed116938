"""QMIX as an RLlib Algorithm with RLlib's own env runner, on the two-step game."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.tune.registry import register_env
from tests.servers.algorithms.qmix.pieces import tensors_of
from tests.servers.algorithms.qmix.two_step import AGENTS, PAYOFF_2B, TwoStepGame

from muxrl.experiments.examples.plain_rllib import Teams
from muxrl.servers.algorithms.qmix import QMIX, QMIXConfig
from muxrl.servers.algorithms.qmix.rl_module import Q_VALUES

pytestmark = pytest.mark.usefixtures("rllib")


@contextmanager
def build(**settings: Any) -> Iterator[QMIX]:
    register_env("two_step_team", lambda _: Teams(TwoStepGame(), {"team": AGENTS}))
    config = (
        QMIXConfig()
        .environment("two_step_team")
        .multi_agent(policies={"m"}, policy_mapping_fn=lambda *args, **kwargs: "m")
        .training(**settings)
        .reporting(min_sample_timesteps_per_iteration=1)
        .debugging(seed=0, log_sys_usage=False)
    )
    algo = config.build_algo()
    try:
        yield algo
    finally:
        algo.stop()


def learner_results(algo: QMIX, num_iterations: int) -> dict[str, Any]:
    for _ in range(num_iterations):
        result = algo.train()
    return result["learners"]["m"] | {"epsilon": result["epsilon"]}


@pytest.mark.parametrize("agent", ["gru", "mlp"])
def test_it_waits_for_episodes_then_updates_at_the_given_rate(agent: str) -> None:
    with build(agent=agent, num_episodes_before_learning=10, updates_per_episode=0.3) as algo:
        for _ in range(9):
            algo.train()
        assert algo.learner_group._learner._num_updates == {"m": 0}
        results = learner_results(algo, 10)  # the 10th to the 19th episode: 3 updates
        assert results["num_updates"] == 3
        assert algo.learner_group._learner._num_updates == {"m": 3}
        assert 0.0 < results["reward_sum_mean"] <= 8.0
        assert 0.99 < results["epsilon"] < 1.0


def test_several_updates_per_episode() -> None:
    with build(agent="mlp", num_episodes_before_learning=2, updates_per_episode=2.5) as algo:
        assert learner_results(algo, 3)["num_updates"] == 5  # episodes 2 and 3


@pytest.mark.parametrize(
    ("more", "shift", "scale"),
    [
        ({}, 0.0, 0.0),
        ({"standardize_rewards": True}, 0.0, 1.0),
        ({"standardize_rewards": True, "center_rewards": True}, 1.0, 1.0),
    ],
    ids=["raw", "scaled", "centred"],
)
def test_rewards_are_standardised_by_running_statistics(
    more: dict[str, bool], shift: float, scale: float
) -> None:
    settings = {"num_episodes_before_learning": 20, "batch_size_episodes": 50}
    with build(**settings, **more) as algo:
        result = learner_results(algo, 20)
        rewards = algo._replays["m"].sample(50)["rewards"]
        assert rewards.std() > 1.5
        expected = (rewards - shift * rewards.mean()).sum(1).mean() / rewards.std() ** scale
        assert result["reward_sum_mean"] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_rewards_are_not_centred_alone() -> None:
    refused = pytest.raises(ValueError, match="it is a part of standardize_rewards, so set that")
    with refused, build(center_rewards=True):
        pass


@pytest.mark.parametrize("mixer", ["qmix", "none"])
def test_an_update_sets_the_priorities_of_what_it_learned_from(mixer: str) -> None:
    settings = {"num_episodes_before_learning": 6, "batch_size_episodes": 3, "mixer": mixer}
    with build(**settings, prioritized_replay_alpha=0.6) as algo:
        for _ in range(5):
            algo.train()
        assert algo._replays["m"].get_state()["priorities"]["values"].tolist() == [1.0] * 5
        results = learner_results(algo, 1)
        state = algo._replays["m"].get_state()["priorities"]
        measured = algo.learner_group._learner.priorities["m"]
        assert len(measured) == 3
        assert set(state["values"].tolist()) == {*measured.astype(np.float64).tolist(), 1.0}
        assert state["highest"] == results["priority_max"] == measured.max()
        assert 0.0 < results["importance_weight_mean"] <= 1.0
        algo.train()  # the next episode
        state = algo._replays["m"].get_state()["priorities"]
        assert state["highest"] >= measured.max()


def test_env_runners_get_the_new_weights() -> None:
    with build(num_episodes_before_learning=1) as algo:
        algo.train()
        runner = algo.env_runner.module["m"]
        learner = algo.learner_group._learner.module["m"]
        assert {name.split(".")[0] for name in runner.state_dict()} == {"agent"}
        for name, value in runner.state_dict().items():
            torch.testing.assert_close(value, learner.state_dict()[name])


def test_a_checkpoint_holds_all_but_the_replay(tmp_path: Path) -> None:
    settings = {
        "num_episodes_before_learning": 4,
        "updates_per_episode": 0.75,
        "standardize_rewards": True,
    }
    with build(**settings) as algo:
        for _ in range(8):
            algo.train()
        state = algo.get_state()
        algo.save_to_path(tmp_path)
        steps = algo.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"))
        expected = algo.learner_group._learner.get_state()
        std = algo._reward_scales["m"].std
        assert std != 1.0
    with build(**settings) as other:
        other.set_state(state)
        _assert_restored(other, expected, steps)
        assert other._updates_due == {"m": 0.75}
        assert other._reward_scales["m"].std == std
        # Epsilon goes on from where it was.
        result = other.train()
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] == steps + 2
        assert result["epsilon"] == pytest.approx(1 - 0.95 * (steps + 2) / 50_000)
    with build(**settings) as third:
        third.restore_from_path(tmp_path)
        assert third._reward_scales["m"].std == std
        _assert_restored(third, expected, steps)


def _assert_restored(algo: QMIX, expected: dict[str, Any], steps: float) -> None:
    state = algo.learner_group._learner.get_state()
    assert state["num_updates_per_module"] == expected["num_updates_per_module"] == {"m": 3}
    for name, value in expected["rl_module"]["m"].items():
        np.testing.assert_array_equal(state["rl_module"]["m"][name], value)
    assert any(name.startswith("_target_mixer.") for name in expected["rl_module"]["m"])
    for name, optimizer in expected["optimizer"].items():
        for index, entry in optimizer["state"]["state"].items():
            for key, value in entry.items():
                restored = state["optimizer"][name]["state"]["state"][index][key]
                np.testing.assert_array_equal(restored, value)
    assert algo.env_runner.num_env_steps_sampled_lifetime == steps


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_two_teams_with_a_module_each_are_updated_together(alpha: float) -> None:
    register_env("two_teams", lambda _: Teams(TwoStepGame(), {"x": AGENTS[:1], "y": AGENTS[1:]}))
    config = (
        QMIXConfig()
        .environment("two_teams")
        .multi_agent(policies={"x", "y"}, policy_mapping_fn=lambda agent_id, *a, **k: agent_id)
        .training(num_episodes_before_learning=1, prioritized_replay_alpha=alpha)
        .reporting(min_sample_timesteps_per_iteration=1)
        .debugging(seed=0, log_sys_usage=False)
    )
    algo = config.build_algo()
    try:
        algo.train()
        results = algo.train()["learners"]
        assert results["x"]["num_updates"] == results["y"]["num_updates"] == 2
        if alpha:
            for module_id, replay in algo._replays.items():
                highest = replay.get_state()["priorities"]["highest"]
                assert highest >= results[module_id]["priority_max"] > 0.0
    finally:
        algo.stop()


def play_greedily(algo: QMIX) -> float:
    """Returns the greedy team's return."""
    module = algo.learner_group._learner.module["m"]
    env = Teams(TwoStepGame(), {"team": AGENTS})
    observations, _ = env.reset()
    state = {k: v[None] for k, v in module.get_initial_state().items()}
    total, is_done = 0.0, False
    while not is_done:
        obs = {k: torch.tensor(v)[None] for k, v in observations["team"].items()}
        out = module.forward_inference({Columns.OBS: obs, Columns.STATE_IN: state})
        state = out.get(Columns.STATE_OUT, state)
        action = out[Columns.ACTIONS][0].numpy()
        observations, rewards, terminateds, *_ = env.step({"team": action})
        total += rewards["team"]
        is_done = terminateds["__all__"]
    return total


def team_values(algo: QMIX) -> dict[str, np.ndarray]:
    """Returns Q_tot of every joint action in states 2A and 2B, by the learner's networks."""
    module = algo.learner_group._learner.module["m"]
    replay = algo._replays["m"]
    tensors = tensors_of(replay.sample(len(replay)))
    out = {}
    with torch.no_grad():
        values = module.forward_train(tensors)[Q_VALUES][:, 1]
        obs = {k: v[:, 1] for k, v in tensors[Columns.OBS].items()}
        for name, row in (("2A", 1), ("2B", 2)):
            here = torch.nonzero(obs["obs"][:, 0, row])[0]
            table = np.zeros((2, 2))
            for a in (0, 1):
                for b in (0, 1):
                    chosen = torch.stack([values[here, 0, a], values[here, 1, b]], -1)
                    table[a, b] = module.mix(chosen, obs["state"][here], obs["alive"][here])
            out[name] = table
    return out


def learned(num_iterations: int, **settings: Any) -> tuple[set[float], dict[str, np.ndarray]]:
    """Trains under uniform exploration; returns the greedy returns that ten measurements saw, and
    the medians of `team_values`. Untrained networks may reach the best by luck, so it must be held;
    a value may be off for some updates, since RMSprop's steps grow while gradients are small."""
    learn = {"agent": "mlp", "epsilon": 1.0, "num_episodes_before_learning": 32}
    held, values = set(), []
    with build(**learn, updates_per_episode=0.5, **settings) as algo:
        for _ in range(num_iterations):
            algo.train()
        for _ in range(10):
            for _ in range(20):
                algo.train()
            held.add(play_greedily(algo))
            values.append(team_values(algo))
    return held, {name: np.median([v[name] for v in values], 0) for name in values[0]}


@pytest.mark.learning
@pytest.mark.night
@pytest.mark.timeout(300)
def test_qmix_learns_the_two_step_game() -> None:
    """Rashid et al. 2018, table 1b. By priority; drawn uniformly it holds 8 in
    ``tests/learning/test_two_step_game.py``."""
    held, values = learned(2_000, gamma=0.99, prioritized_replay_alpha=0.6)
    assert held == {8.0}
    np.testing.assert_allclose(values["2A"], 7.0, atol=0.5)
    np.testing.assert_allclose(values["2B"], PAYOFF_2B, atol=0.5)


@pytest.mark.night  # by day: test_two_step_game.py, QMIX
@pytest.mark.learning
@pytest.mark.timeout(300)
def test_vdn_prefers_the_safe_seven_under_uniform_exploration() -> None:
    """A sum cannot represent 0, 1, 1, 8: its best fit is -1.5, 2.5, 2.5, 6.5 (table 1a there)."""
    held, values = learned(1_200, mixer="vdn")
    assert held == {7.0}
    np.testing.assert_allclose(values["2A"], 7.0, atol=0.5)
    np.testing.assert_allclose(values["2B"], [[-1.5, 2.5], [2.5, 6.5]], atol=0.75)
