from __future__ import annotations

import itertools
import time
import warnings
from typing import Any

import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test
from tests.experiments.playing import returns_of

from muxrl.experiments.simulations import cue_game, matrix_game, two_step_game, zero_cost
from muxrl.experiments.simulations.cue_game import CueGame
from muxrl.experiments.simulations.dials import Dials
from muxrl.experiments.simulations.faulty import UNKNOWN_AGENT, Faulty, InjectedFault
from muxrl.experiments.simulations.locked_doors import LockedDoors
from muxrl.experiments.simulations.matrix_game import MatrixGame
from muxrl.experiments.simulations.recall_game import RecallGame
from muxrl.experiments.simulations.sentries import Sentries
from muxrl.experiments.simulations.spread import Spread
from muxrl.experiments.simulations.stairs import Stairs
from muxrl.experiments.simulations.tag_arrays import SimpleTag
from muxrl.experiments.simulations.two_step_game import TwoStepGame
from muxrl.experiments.simulations.unlike_cues import UnlikeCues
from muxrl.experiments.simulations.weather_cues import WeatherCues
from muxrl.experiments.simulations.zero_cost import ZeroCost


@pytest.mark.parametrize(
    "env",
    [
        *(LockedDoors(num_steps=50), LockedDoors(has_masks=False), WeatherCues(), Stairs()),
        *(Dials(), Dials(num_agents=3, num_dials=1), RecallGame(num_agents=2, delay=0)),
        *(RecallGame(), UnlikeCues(), Sentries(), Spread(), SimpleTag(num_good=2)),
        TwoStepGame(),
        MatrixGame("climbing"),
        MatrixGame("penalty", k=-5),
        MatrixGame(payoffs=[[1, 2, 3], [4, 5, 6]]),
        CueGame(),
        CueGame(num_agents=5, num_cues=3),
        ZeroCost(),
        Faulty("raise", at_step=10_000),
    ],
    ids=lambda env: type(env).__name__,
)
def test_each_is_a_valid_parallel_env(env: ParallelEnv, capsys: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=250)
    observations, _ = env.reset(seed=1)
    for agent, observation in observations.items():
        assert env.observation_space(agent).contains(observation)
    if hasattr(env, "state_space"):
        assert env.state_space.contains(env.state())


@pytest.mark.parametrize(
    ("actions", "payoff"),
    [
        *[((0, a, b), 7.0) for a, b in itertools.product(range(2), repeat=2)],
        ((1, 0, 0), 0.0),
        ((1, 0, 1), 1.0),
        ((1, 1, 0), 1.0),
        ((1, 1, 1), 8.0),
    ],
)
def test_the_two_step_game_pays_the_papers_table(
    actions: tuple[int, int, int], payoff: float
) -> None:
    env = TwoStepGame()
    env.reset()
    assert env.state().tolist() == [1, 0, 0]
    door, *answers = actions
    observations, rewards, terminations, _, _ = env.step({"agent_0": door, "agent_1": 1 - door})
    assert sum(rewards.values()) == 0
    assert not any(terminations.values())
    assert env.state().tolist() == [0, 1 - door, door]
    assert observations["agent_1"].tolist() == [0, 1 - door, door, 0, 1]
    _, rewards, terminations, _, _ = env.step(dict(zip(env.agents, answers, strict=True)))
    assert sum(rewards.values()) == payoff
    assert all(terminations.values())


def test_bounds_of_the_two_step_game() -> None:
    assert two_step_game.random_return() == 4.75
    assert two_step_game.oracle_return() == 8


def test_matrix_games_pay_the_table_and_their_bounds_are_its_mean_and_maximum() -> None:
    for game, k in (("climbing", -100.0), ("penalty", -7.0)):
        payoffs = matrix_game.payoffs_of(game, k)  # type: ignore[arg-type]
        for a, b in itertools.product(range(3), repeat=2):
            env = MatrixGame(game, k=k)  # type: ignore[arg-type]
            returns = returns_of(env, lambda agent, _, ab=(a, b): ab[int(agent[-1])])
            assert sum(returns.values()) == payoffs[a, b]
    assert matrix_game.oracle_return("climbing") == 11
    assert matrix_game.oracle_return("penalty") == 10
    assert matrix_game.random_return("penalty", k=-11) == 0
    with pytest.raises(ValueError, match="either game or payoffs"):
        MatrixGame("climbing", payoffs=[[1]])
    with pytest.raises(ValueError, match="no matrix game 'climbign'"):
        MatrixGame("climbign")  # type: ignore[arg-type]


def answer(agent: str, observation: Any) -> int:
    return int(observation[:4].argmax())


def test_bounds_of_the_cue_game() -> None:
    assert cue_game.random_return() == 2.65625
    assert cue_game.oracle_return() == 20
    assert cue_game.expected_return(1) == 5.625
    env = CueGame()
    assert set(returns_of(env, answer).values()) == {20.0}
    rng = np.random.default_rng(0)

    def one_has_learned(agent: str, observation: Any) -> int:
        return answer(agent, observation) if agent == "agent_1" else int(rng.integers(4))

    measured = [returns_of(env, one_has_learned, seed)["agent_0"] for seed in range(500)]
    error = np.std(measured) / np.sqrt(len(measured))
    assert abs(np.mean(measured) - 5.625) < 4 * error


def test_one_learner_in_any_position_gets_better_within_some_thousand_steps() -> None:
    """A tabular bandit for each cue: any server's algorithm can do as much."""
    for position in ("agent_0", "agent_2"):
        env, rng = CueGame(), np.random.default_rng(1)
        sums, counts = np.zeros((4, 4)), np.full((4, 4), 1e-9)
        env.reset(seed=2)
        for _ in range(3000):
            if not env.agents:
                env.reset()
            cue = int(env.state().reshape(3, 4)[int(position[-1])].argmax())
            actions = {agent: int(rng.integers(4)) for agent in env.agents}
            _, rewards, _, _, _ = env.step(actions)
            sums[cue, actions[position]] += rewards[position]
            counts[cue, actions[position]] += 1
        assert (sums / counts).argmax(axis=1).tolist() == [0, 1, 2, 3]


def test_a_seed_fixes_the_cues() -> None:
    first, second = CueGame(), CueGame()
    first.reset(seed=5)
    second.reset(seed=5)
    assert (first.state() == second.state()).all()
    assert (first._cues == second._cues).all()


def test_bounds_of_the_zero_cost_simulation() -> None:
    env = ZeroCost()
    oracle = returns_of(env, lambda _, observation: int(observation[:5].argmax()))
    assert set(oracle.values()) == {zero_cost.oracle_return()} == {100.0}
    rng = np.random.default_rng(0)
    measured = [returns_of(env, lambda *_: int(rng.integers(5)))["agent_0"] for _ in range(50)]
    assert abs(np.mean(measured) - zero_cost.random_return()) < 4 * 4 / np.sqrt(50)
    with pytest.raises(ValueError, match="at least that"):
        ZeroCost(observation_size=2)


def step_to(env: ParallelEnv, t: int) -> Any:
    env.reset()
    for _ in range(t):
        env.step(dict.fromkeys(env.agents, 0))
    return env.step(dict.fromkeys(env.agents, 0))[0]


@pytest.mark.parametrize("t", [0, 3])
def test_each_fault_comes_at_its_step(t: int) -> None:
    with pytest.raises(InjectedFault):
        step_to(Faulty("raise", at_step=t), t)
    step_to(Faulty("raise", at_step=t + 1), t)
    observations = step_to(Faulty("wrong_shape", at_step=t, agent_id="agent_3"), t)
    assert observations["agent_3"].shape == (9,)
    assert observations["agent_0"].shape == (8,)
    observation = step_to(Faulty("nan", at_step=t), t)["agent_0"]
    assert np.isnan(observation).tolist() == [i == 1 for i in range(8)]
    assert observation.dtype == np.float32
    assert step_to(Faulty("wrong_dtype", at_step=t), t)["agent_0"].dtype == np.int64
    assert UNKNOWN_AGENT in step_to(Faulty("unknown_agent", at_step=t), t)
    start = time.monotonic()
    step_to(Faulty("hang", at_step=t, hang_s=0.05), t)
    assert time.monotonic() - start >= 0.05


def test_a_fault_comes_once_or_in_every_later_episode() -> None:
    once, again = (Faulty("raise", at_step=0, is_repeated=r) for r in (False, True))
    for env in (once, again):
        with pytest.raises(InjectedFault):
            step_to(env, 0)
    step_to(once, 0)
    with pytest.raises(InjectedFault):
        step_to(again, 0)
    later = Faulty("raise", at_step=0, in_episode=1)
    step_to(later, 0)
    with pytest.raises(InjectedFault):
        step_to(later, 0)


def test_an_unknown_fault_or_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault 'rais'"):
        Faulty("rais")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no agent 'x'"):
        Faulty("nan", agent_id="x")
