"""muxrl's own simulations are valid environments with the returns that their modules state."""

from __future__ import annotations

import itertools
import time
import warnings
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test
from tests.experiments.playing import Choose, returns_of

from muxrl.experiments.simulations import (
    bright_corner,
    cue_game,
    dials,
    locked_doors,
    matrix_game,
    recall_game,
    sentries,
    two_step_game,
    unlike_cues,
    zero_cost,
)
from muxrl.experiments.simulations.bright_corner import BrightCorner
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

RNG = np.random.default_rng(0)


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
def test_each_simulation_is_a_valid_parallel_env(env: ParallelEnv, capsys: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=250)
    observations, _ = env.reset(seed=1)
    for agent, observation in observations.items():
        assert env.observation_space(agent).contains(observation)
    if hasattr(env, "state_space"):
        assert env.state_space.contains(env.state())


def brightest(agent: str, image: np.ndarray) -> int:
    half = len(image) // 2
    quarters = image.reshape(2, half, 2, half).astype(float)
    return int(quarters.mean(axis=(1, 3)).argmax())


def remembering() -> Choose:
    """Returns a rule that answers with the cue of the episode's beginning."""
    cue_of: dict[str, int] = {}

    def remember(agent: str, now: Any) -> int:
        if now[:4].any():
            cue_of[agent] = int(now[:4].argmax())
        return cue_of[agent]

    return remember


def largest_of(num: int | None) -> Choose:
    """Returns a rule that answers the cue, which is in the first numbers of an observation."""
    return lambda _, seen: int(seen[:num].argmax())


def any_of(num: int) -> Choose:
    return lambda *_: int(RNG.integers(num))


def one_answers(agent: str, seen: Any) -> int:
    return int(seen[:4].argmax() if agent == "agent_1" else RNG.integers(4))


def turned(agent: str, seen: Any) -> np.ndarray:
    return RNG.uniform(2.0, 10.0, 2).astype(np.float32)


@pytest.mark.parametrize(
    ("env", "choose", "expected", "within", "num_episodes"),
    [
        (BrightCorner(84), brightest, bright_corner.oracle_return(), 0.0, 20),
        (BrightCorner(10), any_of(4), bright_corner.random_return(), 0.3, 400),
        (CueGame(), largest_of(4), cue_game.oracle_return(), 0.0, 1),
        (CueGame(), one_answers, cue_game.expected_return(1), 0.22, 500),
        (Dials(num_agents=2), turned, dials.random_return(), 0.1, 300),
        (Dials(num_agents=2), lambda *_: np.full(2, 6.0, np.float32), dials.still_return(), 0.1,
         300),
        (Dials(num_agents=2), lambda _, wish: 2.0 + 8.0 * wish, dials.oracle_return(), 1e-4, 5),
        (LockedDoors(), lambda _, seen: int(np.flatnonzero(seen["action_mask"])[-1]),
         locked_doors.oracle_return(), 0.1, 800),
        (LockedDoors(), lambda _, seen: int(RNG.choice(np.flatnonzero(seen["action_mask"]))),
         locked_doors.random_return(), 0.1, 800),
        (LockedDoors(), lambda _, seen: len(seen["action_mask"]) - 1, locked_doors.blind_return(),
         0.1, 800),
        (RecallGame(num_agents=2), lambda *_: 1, recall_game.memoryless_return(), 0.05, 500),
        (RecallGame(num_agents=2), remembering(), recall_game.oracle_return(), 0.0, 20),
        *(
            case
            for interval, best in ((0, 36), (2, 30))
            for case in (
                (Sentries(arrival_interval=interval), largest_of(3), best / 3, 1e-9, 1),
                (Sentries(arrival_interval=interval), any_of(3),
                 sentries.random_return(arrival_interval=interval) / 3, 0.12, 500),
            )
        ),
        (UnlikeCues(), largest_of(None), unlike_cues.oracle_return(), 0.0, 1),
        (UnlikeCues(), lambda _, seen: int(RNG.integers(len(seen))), unlike_cues.random_return(),
         0.24, 400),
        (UnlikeCues(), lambda _, seen: int(seen.argmax()) % 2, 9.5556, 0.41, 400),
        (ZeroCost(), largest_of(5), zero_cost.oracle_return(), 0.0, 1),
        (ZeroCost(), any_of(5), zero_cost.random_return(), 0.92, 50),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ParallelEnv) else "",
)  # fmt: skip
def test_each_rule_earns_the_return_that_the_module_states(
    env: ParallelEnv, choose: Choose, expected: float, within: float, num_episodes: int
) -> None:
    """Compared is the mean over agents and episodes; without a tolerance, each agent's return."""
    earned = [[*returns_of(env, choose, seed).values()] for seed in range(num_episodes)]
    if within:
        assert np.mean(earned) == pytest.approx(expected, abs=within)
    else:
        assert {*itertools.chain(*earned)} == {expected}


@pytest.mark.parametrize(
    ("bound", "figure"),
    [
        (cue_game.random_return(), 2.65625),
        (cue_game.oracle_return(), 20),
        (cue_game.expected_return(1), 5.625),
        (locked_doors.oracle_return(), 7.5556),
        (locked_doors.blind_return(), 0.1426),
        (matrix_game.oracle_return("climbing"), 11),
        (matrix_game.oracle_return("penalty"), 10),
        (matrix_game.random_return("penalty", k=-11), 0),
        (sentries.oracle_return(arrival_interval=0), 36),
        (sentries.oracle_return(arrival_interval=2), 30),
        (sentries.random_return(arrival_interval=0), 5.0),
        (sentries.random_return(arrival_interval=2), 4.9999),
        (two_step_game.random_return(), 4.75),
        (two_step_game.oracle_return(), 8),
        (unlike_cues.random_return(), 3.7778),
        (zero_cost.oracle_return(), 100),
    ],
)
def test_each_stated_return_is_the_known_number(bound: float, figure: float) -> None:
    assert bound == pytest.approx(figure, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "story"),
    [
        (lambda: BrightCorner(85), "size=85 has no quarters"),
        (lambda: Faulty("nan", agent_id="x"), "no agent 'x'"),
        (lambda: Faulty("rais"), "no fault 'rais'"),  # type: ignore[arg-type]
        (lambda: MatrixGame("climbign"), "no matrix game 'climbign'"),  # type: ignore[arg-type]
        (lambda: MatrixGame("climbing", payoffs=[[1]]), "either game or payoffs"),
        (lambda: Sentries(num_steps=4), "steps left after the last arrival"),
        (lambda: SimpleTag(num_good=0), "good agent"),
        (lambda: ZeroCost(observation_size=2), "at least that"),
    ],
)
def test_invalid_arguments_of_simulations_are_refused(make: Any, story: str) -> None:
    with pytest.raises(ValueError, match=story):
        make()


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


def test_matrix_games_pay_the_table() -> None:
    for game, k in (("climbing", -100.0), ("penalty", -7.0)):
        payoffs = matrix_game.payoffs_of(game, k)  # type: ignore[arg-type]
        for a, b in itertools.product(range(3), repeat=2):
            env = MatrixGame(game, k=k)  # type: ignore[arg-type]
            returns = returns_of(env, lambda agent, _, ab=(a, b): ab[int(agent[-1])])
            assert sum(returns.values()) == payoffs[a, b]


def test_a_locked_door_ends_the_game_or_raises() -> None:
    env = LockedDoors(num_agents=1)
    observations, _ = env.reset(seed=0)
    locked = int(np.flatnonzero(observations["agent_0"]["action_mask"] == 0)[0])
    _, rewards, terminations, truncations, _ = env.step({"agent_0": locked})
    assert (rewards, terminations) == ({"agent_0": -1.0}, {"agent_0": True})
    assert truncations == {"agent_0": False}
    assert env.agents == []
    strict = LockedDoors(num_agents=1, is_strict=True)
    strict.reset(seed=0)
    with pytest.raises(ValueError, match=f"agent_0 walked into door {locked}, which is locked"):
        strict.step({"agent_0": locked})


def test_without_masks_nobody_sees_which_doors_are_open() -> None:
    env = LockedDoors(has_masks=False)
    for seed in range(5):
        observations, _ = env.reset(seed=seed)
        assert [observations[agent].tolist() for agent in env.agents] == [[1.0, 0.0], [0.0, 1.0]]


def test_the_weather_is_in_the_rewards_and_the_state_and_nowhere_else() -> None:
    plain, weather = CueGame(), WeatherCues(strength=5.0)
    seen = set()
    for seed in range(20):
        observations, _ = weather.reset(seed=seed)
        expected, _ = plain.reset(seed=seed)
        actions = dict.fromkeys(plain.possible_agents, 0)
        for agent in plain.possible_agents:
            np.testing.assert_array_equal(observations[agent], expected[agent])
        np.testing.assert_array_equal(weather.state()[:-1], plain.state())
        assert weather.weather == 5.0 * weather.state()[-1]
        rewards, plain_rewards = weather.step(actions)[1], plain.step(actions)[1]
        assert rewards == {a: r + weather.weather for a, r in plain_rewards.items()}
        seen.add(weather.weather)
    assert seen == {-5.0, 5.0}


def test_random_climbers_reach_the_top_by_chance_alone() -> None:
    env = Stairs(height=20)
    for distance in (1, 3):
        tops = []
        for seed in range(1500):
            observations, _ = env.reset(seed, {"distance": distance})
            assert all(seen.argmax() == distance - 1 for seen in observations.values())
            rewards: dict[str, float] = {}
            while env.agents:
                _, now, *_ = env.step({a: int(RNG.integers(2)) for a in env.agents})
                rewards |= now
            tops += rewards.values()
        assert fmean(tops) == pytest.approx(2.0**-distance, abs=0.04)


def test_a_dial_does_not_go_beyond_its_scale() -> None:
    env = Dials()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"agent_0 sets its dials to .* beyond Box"):
        env.step({"agent_0": np.array([2.0, 10.1], np.float32)})


def test_at_the_question_all_episodes_look_alike() -> None:
    env = RecallGame()
    seen = []
    for seed in range(20):
        observation = env.reset(seed=seed)[0]["agent_0"]
        while env.agents:
            last = observation
            observation = env.step({"agent_0": 0})[0]["agent_0"]
        seen.append(last)
    assert all((observation == [0, 0, 0, 0, 1]).all() for observation in seen)


def step_to(env: ParallelEnv, t: int) -> Any:
    env.reset()
    for _ in range(t):
        env.step(dict.fromkeys(env.agents, 0))
    return env.step(dict.fromkeys(env.agents, 0))[0]


@pytest.mark.parametrize("t", [0, 3])
def test_each_fault_occurs_at_its_step(t: int) -> None:
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


def test_a_fault_occurs_once_or_in_every_later_episode() -> None:
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
