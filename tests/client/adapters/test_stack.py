"""Ordinary simulations as the copies of one: each plays as it does alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv
from tests.client.adapters import test_pettingzoo_parallel as parallel
from tests.client.adapters import test_rllib_multi_agent as dicts

from muxrl.client.adapters import Simulation, SimulationError, Stack, adapt, make_simulation
from muxrl.client.adapters.vector_simulation import Rows, VectorStep, row
from muxrl.protocol.values import sample


def acted(stack: Stack, rng: np.random.Generator) -> dict[str, Rows]:
    return {
        agent: np.array([sample(space, rng) for _ in range(stack.num_copies)])
        for agent, space in stack.action_spaces.items()
    }


def at(rows: Rows, copy: int) -> Any:
    value = row(rows, copy)
    return value.tolist() if isinstance(value, np.ndarray) else value


def check(stack: Stack, step: VectorStep, copy: int, alone: Simulation, result: Any) -> None:
    """Holds that a copy's part of a step is what the simulation gave by itself."""
    agents = stack.possible_agents
    for flags, named in (
        (step.present, result.observations),
        (step.terminated, result.terminations),
        (step.truncated, result.truncations),
    ):
        assert flags[copy].tolist() == [agent in named for agent in agents]
    assert step.is_over[copy] == result.is_over
    for agent, value in result.observations.items():
        assert at(step.observations[agent], copy) == np.asarray(value).tolist()
    paid = {agent: float(rewards[copy]) for agent, rewards in step.rewards.items()}
    assert paid == {agent: result.rewards.get(agent, 0.0) for agent in agents}
    last = step.final_observations.get(copy, {})
    assert last.keys() == result.final_observations.keys()
    assert step.listed_infos[copy] == (*result.earlier_infos, result.infos)


def play(copies: list[Simulation], alone: list[Simulation]) -> None:
    stack, rng = Stack(copies), np.random.default_rng(0)
    stack.reset(seed=5)
    for copy, simulation in enumerate(alone):
        seen, _ = simulation.reset(seed=5 + copy)
        assert stack.present[copy].tolist() == [a in seen for a in stack.possible_agents]
    left = set(range(len(alone)))
    while left:
        actions = acted(stack, rng)
        acting = stack.present
        step = stack.step(actions, sorted(left))
        for copy in sorted(left):
            there = np.array(stack.possible_agents)[acting[copy]].tolist()
            result = alone[copy].step({a: at(actions[a], copy) for a in there})
            check(stack, step, copy, alone[copy], result)
            left -= {copy} if result.is_over else set()


@settings(max_examples=50)
@given(st.lists(parallel.lives(parallel.ALL_ENDINGS), min_size=1, max_size=3))
def test_agents_end_apart_in_each_copy(written: list[Any]) -> None:
    num = min(map(len, written))
    copies, alone = ([adapt(parallel.Scripted(one[:num])) for one in written] for _ in range(2))
    play(copies, alone)


@settings(max_examples=50)
@given(st.lists(dicts.rows.map(dicts.without_returns), min_size=1, max_size=3))
def test_agents_come_late_and_wait_and_infos_of_all_steps_are_there(scripts: list[Any]) -> None:
    last = ([], {}, ["__all__"], [])
    copies, alone = (
        [adapt(dicts.Scripted({"script": [*script, last]})) for script in scripts] for _ in range(2)
    )
    play(copies, alone)


class Walk(ParallelEnv[str, Any, Any]):
    """Starts where its options or its seed say, and ends after three steps; b may come back."""

    possible_agents, metadata = ["a", "b"], {}
    state_space = spaces.Box(-99, 99, (1,))

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-99, 99, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.at = 0, (options or {}).get("at", seed or 0)
        self.agents = ["a", "b"]
        return self.seen("ab"), {}

    def step(self, actions: Any) -> Any:
        self.t, self.at = self.t + 1, self.at + actions["a"]
        there = "a" if self.t == 1 else "ab"
        self.agents = [] if self.t == 3 else list(there)
        ends = {agent: self.t == 3 or (agent == "b" and self.t == 1) for agent in actions}
        return self.seen(there), dict.fromkeys(actions, 1.0), ends, dict.fromkeys(ends, False), {}

    def seen(self, agents: str) -> Any:
        here = np.full(1, self.at, np.float32) if self.value is None else self.value
        return dict.fromkeys(agents, here)

    def state(self) -> Any:
        return np.full(1, self.at)


def walks(num: int, *values: Any) -> Stack:
    return Stack([adapt(Walk(*values[i : i + 1]), "same_id") for i in range(num)])


def ones() -> dict[str, Rows]:
    return dict.fromkeys("ab", np.ones(2, int))


def test_one_copy_begins_alone_with_its_own_seed_and_parameters() -> None:
    stack = walks(2)
    assert stack.reset(seed=10)["a"].tolist() == [[10.0], [11.0]]
    stack.step(ones())
    assert stack.begin(0, seed=3)["a"].tolist() == [[3.0], [12.0]], "in the middle of an episode"
    before = stack.begin(1, 3, {"at": 7})["a"]
    assert before.tolist() == [[3.0], [7.0]]
    assert stack.begin(1)["a"].tolist() == [[3.0], [0.0]], "those were of an episode"
    assert before.tolist() == [[3.0], [7.0]], "what was given does not change"
    assert stack.step(ones(), [1]).observations["a"].tolist() == [[3.0], [1.0]]
    assert stack.step(ones(), [1, 0]).observations["a"].tolist() == [[4.0], [2.0]]


def test_who_comes_back_is_there_again() -> None:
    stack = walks(2)
    stack.reset()
    first, second, third, fourth = (stack.step(ones()) for _ in range(4))
    assert first.present.tolist() == [[True, False]] * 2
    assert first.terminated.tolist() == [[False, True]] * 2
    assert second.present.all()
    assert third.is_over.tolist() == [True, True]
    assert not third.present.any()
    assert fourth.present.all(), "the next episode, which begins by itself"
    assert not fourth.listed_infos, "nobody has acted"


def test_copies_that_begin_by_themselves_ask_for_their_parameters() -> None:
    stack = walks(2)
    at = iter(range(20, 30))
    stack.ask_options(lambda copy: {"at": next(at)})
    assert stack.reset()["a"].tolist() == [[20.0], [21.0]]
    steps = [stack.step(ones()) for _ in range(4)]
    assert steps[-1].observations["a"].tolist() == [[22.0], [23.0]]


def test_the_state_is_of_each_copy_and_the_last_one_kept() -> None:
    stack = walks(2)
    stack.reset(seed=10)
    step = stack.step(ones())
    assert stack.state().tolist() == [[11.0], [12.0]]  # type: ignore[union-attr]
    assert step.final_states == {}
    for _ in range(2):
        step = stack.step(ones(), [0])
    assert {copy: one.tolist() for copy, one in step.final_states.items()} == {0: [13.0]}
    assert stack.state().tolist() == [[0.0], [12.0]]  # type: ignore[union-attr]


def test_lists_become_rows_and_what_is_none_is_named() -> None:
    assert walks(2, [4.0]).reset()["b"].tolist() == [[4.0], [0.0]]
    assert np.isnan(walks(2, np.full(1, np.nan)).reset()["b"][0]), "a server says what is done"
    with pytest.raises(SimulationError, match=r"agent 'a' observes in copy 1 .*got shape \[?\(?2"):
        walks(2, [4.0], np.zeros(2)).reset()


def test_simulations_that_differ_are_no_stack() -> None:
    carts = make_simulation("gymnasium:CartPole-v1", {})
    with pytest.raises(SimulationError, match="differ in their agents or spaces"):
        Stack([carts, adapt(Walk())])
    stack = Stack([carts])
    assert stack.reset(seed=3)["agent"].tolist() == [carts.reset(seed=3)[0]["agent"].tolist()]
    stack.close()
