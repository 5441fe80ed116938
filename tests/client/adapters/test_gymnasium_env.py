"""Gymnasium environments of one agent, or of several agents with one part of a Tuple space each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from muxrl.client.adapters import SimulationError, adapt, make_simulation
from muxrl.client.adapters.simulation import COMMON
from muxrl.protocol.spaces import Box, DictSpace, Discrete

Play = Callable[..., Any]
SEES = spaces.Box(-1.0, 1.0, (2,), np.float32)
DOES = spaces.Discrete(5)


def test_continuous_actions_and_a_class_as_factory(play: Play) -> None:
    simulation = make_simulation("gymnasium.envs.classic_control:PendulumEnv", {"g": 9.81})
    observations, infos = simulation.reset(seed=1)
    assert observations["agent"].dtype == np.float32
    assert infos == {"agent": {}}
    for _ in range(3):
        assert not simulation.step({"agent": np.zeros(1, np.float64)}).is_over
    simulation.close()
    assert simulation.state_size is None
    assert simulation.state() is None


class Both(gymnasium.Env):
    """An environment that is terminated and truncated at once, and whose numbers are numpy
    integers."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Dict({"a": spaces.MultiDiscrete([2, 2], dtype=np.int32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return np.int64(1), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        assert self.action_space.contains(action)
        return np.array(2), np.float32(1.5), np.True_, np.True_, {}


def test_terminated_wins_and_numbers_become_plain(play: Play) -> None:
    simulation = make_simulation(f"{__name__}:Both", {})
    assert simulation.observation_spaces == {"agent": Discrete(3)}
    played = play(simulation)
    (result,) = played.results
    assert result.terminations == {"agent": True}
    assert result.truncations == {}
    assert type(result.final_observations["agent"]) is int
    assert result.rewards == {"agent": pytest.approx(1.5)}


class Warehouse(gymnasium.Env):
    """Two or more agents with rware's API: tuples of observations, lists of rewards.

    Args:
        rows: the rewards, terminated, truncated and info of each step.
        num_agents: how many agents observe and act.
        observe: how many observations a step returns.
    """

    def __init__(self, rows: list[tuple[Any, ...]], num_agents: int = 2, observe: int = 2) -> None:
        self.n_agents, self.rows, self.observe = num_agents, rows, observe
        self.observation_space: Any = spaces.Tuple([SEES] * num_agents)
        self.action_space: Any = spaces.Tuple([DOES] * num_agents)
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.left = iter(self.rows)
        self.buffer = np.zeros((self.n_agents, 2), np.float32)
        return tuple(self.buffer), {"seed": seed}

    def step(self, action: Any) -> tuple[Any, ...]:
        assert self.action_space.contains(action)
        self.taken.append(action)
        self.buffer += 0.125
        return (tuple(self.buffer)[: self.observe], *next(self.left))


def test_one_agent_for_each_part_of_the_tuples(play: Play) -> None:
    env = Warehouse([([0.0, np.float64(1.0)], False, False, {}), ([0.5, 0.0], True, False, {})])
    simulation = adapt(env)
    assert simulation.possible_agents == ("agent_0", "agent_1")
    assert simulation.observation_spaces["agent_1"] == Box((2,), "float32", -1.0, 1.0)
    assert simulation.action_spaces["agent_1"] == Discrete(5)
    assert simulation.state_size is None
    played = play(simulation, lambda agent, _: int(agent[-1]) + 3)
    assert env.taken == [(3, 4), (3, 4)]
    assert played.returns == {"agent_0": 0.5, "agent_1": 1.0}
    assert played.terminated == ["agent_0", "agent_1"]
    first, last = played.results
    assert first.observations["agent_0"].tolist() == [0.125, 0.125], "copied: buffers are reused"
    assert last.final_observations["agent_1"].tolist() == [0.25, 0.25]
    assert last.infos == {COMMON: {}}


@pytest.mark.parametrize("flags", [True, np.True_, [True, True], np.ones(2, bool), (1, 1)])
def test_terminated_and_truncated_are_one_flag_for_all_or_one_for_each_agent(
    play: Play, flags: Any
) -> None:
    played = play(adapt(Warehouse([([1, 1], [False, False], flags, {})])))
    assert played.truncated == ["agent_0", "agent_1"]
    assert played.terminated == []
    assert played.results[0].final_observations.keys() == {"agent_0", "agent_1"}


@pytest.mark.parametrize("reward", [2.0, np.float32(2.0), 2, np.array(2.0)])
def test_a_single_reward_is_paid_to_each_agent(play: Play, reward: Any) -> None:
    played = play(adapt(Warehouse([(reward, True, False, {})])))
    assert played.returns == {"agent_0": 2.0, "agent_1": 2.0}


def test_an_agent_that_is_done_early_acts_no_more_and_keeps_its_place_in_the_tuple(
    play: Play,
) -> None:
    env = Warehouse(
        [
            (np.array([1.0, 1.0]), [True, False], [True, False], {}),
            (np.array([0.0, 1.0]), [True, False], [False, False], {}),
            (np.array([0.5, 1.0]), [False, False], [False, True], {}),
        ]
    )
    moves = iter([[1], [2], [3], [4]])
    played = play(adapt(env), lambda *_: next(moves)[0])
    assert env.taken == [(1, 2), (1, 3), (1, 4)]
    assert [list(result.observations) for result in played.results] == [["agent_1"]] * 2 + [[]]
    assert played.terminated == ["agent_0"], "terminated and truncated: there is nothing to add"
    assert played.truncated == ["agent_1"]
    assert played.returns == {"agent_0": 1.5, "agent_1": 3.0}, "also what it was paid afterwards"
    simulation = adapt(env)
    assert list(simulation.reset(seed=5)[0]) == ["agent_0", "agent_1"], "all are back"
    assert simulation.reset(seed=5)[1] == {COMMON: {"seed": 5}}


def test_infos_of_each_agent_and_masks_in_them(play: Play) -> None:
    rows = [(0.0, True, False, [{"won": 1}, {"action_mask": [0, 0, 1, 0, 0]}])]

    class Told(Warehouse):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            return super().reset(seed=seed)[0], [{"action_mask": [1, 0, 0, 0, 0]}, {}]

    simulation = adapt(Told(rows))
    space = simulation.observation_spaces["agent_1"]
    assert isinstance(space, DictSpace)
    assert list(space.spaces) == ["observation", "action_mask"]
    played = play(simulation, lambda _, seen: int(seen["action_mask"].argmax()))
    (result,) = played.results
    assert result.infos["agent_0"] == {"won": 1}
    assert result.final_observations["agent_1"]["action_mask"].tolist() == [0, 0, 1, 0, 0]

    class Rows(Warehouse):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            return super().reset(seed=seed)[0], {"action_mask": np.eye(2, 5)}

    observations, infos = adapt(Rows([])).reset()
    assert observations["agent_1"]["action_mask"].tolist() == [0, 1, 0, 0, 0]
    assert infos[COMMON].keys() == {"action_mask"}


def test_lists_of_spaces_are_taken_too(play: Play) -> None:
    env = Warehouse([(0.0, True, False, {})])
    env.observation_space = [SEES, SEES]
    assert play(adapt(env)).terminated == ["agent_0", "agent_1"]


def test_tuple_spaces_of_unequal_length_belong_to_one_agent() -> None:
    env = Warehouse([])
    env.observation_space = spaces.Tuple([SEES] * 3)
    assert adapt(env).possible_agents == ("agent",)


@pytest.mark.parametrize(
    ("row", "observe", "message"),
    [
        ((0.0, False, False, {}), 1, r"its observations as a tuple of 1; its spaces have 2 parts"),
        (([1.0], False, False, {}), 2, r"its rewards as a list of 1"),
        (({"agent_0": 1.0}, False, False, {}), 2, r"its rewards as a dict; .* array of 2 values"),
        ((0.0, [True] * 3, False, {}), 2, r"its terminated as a list of 3"),
        ((0.0, False, np.ones((3, 1), bool), {}), 2, r"its truncated as a ndarray of 3"),
        ((0.0, False, False, None), 2, r"its infos as a NoneType"),
    ],
)
def test_tuples_with_other_than_one_part_for_each_agent_are_refused(
    row: tuple[Any, ...], observe: int, message: str
) -> None:
    simulation = adapt(Warehouse([row], observe=observe))
    simulation.reset()
    with pytest.raises(SimulationError, match=message):
        simulation.step({"agent_0": 0, "agent_1": 0})
