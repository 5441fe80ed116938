from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tests.client.scripted_envs import TwoAgents

from muxrl.client.adapters import SimulationError, make_simulation
from muxrl.client.adapters.pettingzoo_parallel import PettingZooParallel

Play = Callable[..., Any]
BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)


@dataclass
class Life:
    """An agent's rewards, one for each step, and how its life ends with the last of them."""

    rewards: list[float]
    ending: str


class Scripted(TwoAgents):
    """A ParallelEnv whose agents live, are paid and end by a script."""

    sees, does = BOX, spaces.Discrete(2)

    def __init__(self, lives: list[Life], keeps_agents: bool = False) -> None:
        self.lives = {f"a{i}": life for i, life in enumerate(lives)}
        self.possible_agents = list(self.lives)
        self.keeps_agents = keeps_agents
        self.agents: list[str] = []
        self.buffer = np.zeros(2)  # float64; the same array is returned at every step
        self.actions: list[dict[str, Any]] = []

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.t, self.agents = 0, list(self.possible_agents)
        return dict.fromkeys(self.agents, self.buffer), {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.actions.append(actions)
        acting = [a for a in self.agents if self.t < len(self.lives[a].rewards)]
        self.buffer += 1
        rewards = {a: self.lives[a].rewards[self.t] for a in acting}
        self.t += 1
        ends = {a: self.lives[a].ending for a in acting if self.t == len(self.lives[a].rewards)}
        if not self.keeps_agents:
            self.agents = [a for a in self.agents if a not in ends]
        return (
            dict.fromkeys(acting, self.buffer),
            rewards,
            {a: ends.get(a) in ("terminated", "both") for a in acting},
            {a: ends.get(a) in ("truncated", "both") for a in acting},
            {"common": {"t": self.t}},
        )


def lives(endings: list[str]) -> st.SearchStrategy[list[Life]]:
    rewards = st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=6)
    return st.lists(st.builds(Life, rewards, st.sampled_from(endings)), min_size=1, max_size=4)


FLAGS = ["terminated", "truncated", "both"]


@given(st.booleans(), st.data())
def test_every_reward_is_routed_once_and_every_agent_is_done_once(
    play: Play, keeps_agents: bool, data: Any
) -> None:
    """If an environment never drops agents from `agents`, only its flags end them."""
    endings = FLAGS if keeps_agents else [*FLAGS, "dropped without a flag"]
    env = Scripted(data.draw(lives(endings)), keeps_agents)
    played = play(PettingZooParallel(env))
    assert played.returns == {a: sum(life.rewards) for a, life in env.lives.items()}
    truncated = {a for a, life in env.lives.items() if life.ending == "truncated"}
    assert set(played.truncated) == truncated
    assert set(played.terminated) == set(env.lives) - truncated
    for t, result in enumerate(played.results, 1):
        assert all((value == t).all() for value in result.observations.values()), "not aliased"
        assert all((value == t).all() for value in result.final_observations.values())
        assert result.infos == {}, "'common' is no agent"


def test_actions_reach_the_env_in_its_own_order() -> None:
    env = Scripted([Life([0.0], "terminated")] * 3)
    simulation = PettingZooParallel(env)
    simulation.reset()
    simulation.step({"a2": 1, "a0": 0, "a1": 1})
    assert list(env.actions[0].items()) == [("a0", 0), ("a1", 1), ("a2", 1)]


def test_wrong_agents_are_refused_with_their_names() -> None:
    simulation = PettingZooParallel(Scripted([Life([0.0], "terminated")] * 2))
    with pytest.raises(SimulationError, match="call reset"):
        simulation.step({"a0": 0})
    simulation.reset()
    with pytest.raises(SimulationError, match=r"missing \['a1'\], not to act now \['b'\]"):
        simulation.step({"a0": 0, "b": 0})


def test_an_unknown_agent_is_refused() -> None:
    simulation = make_simulation(
        "muxrl.experiments.simulations.faulty:Faulty", {"fault": "unknown_agent", "at_step": 0}
    )
    observations, _ = simulation.reset()
    with pytest.raises(SimulationError, match=r"'agent_nobody_announced'.*possible_agents"):
        simulation.step(dict.fromkeys(observations, 0))


def test_live_agents_whom_nobody_observes_are_an_error() -> None:
    env = Scripted([Life([0.0] * 2, "terminated")])
    simulation = PettingZooParallel(env)
    simulation.reset()
    observed_nobody = ({}, *env.step({})[1:])
    env.step = lambda actions: observed_nobody  # type: ignore[method-assign]
    with pytest.raises(SimulationError, match=r"no observation to its live agents \['a0'\]"):
        simulation.step({"a0": 0})


@pytest.mark.parametrize("flag", [{"a0": False}, {"a0": True}, {}])
def test_an_agent_that_comes_back_is_refused_by_name_and_one_that_is_done_twice_is_not(
    flag: dict[str, bool],
) -> None:
    env = Scripted([Life([1.0], "terminated"), Life([1.0] * 3, "terminated")])
    simulation = PettingZooParallel(env)
    simulation.reset()
    simulation.step({"a0": 0, "a1": 0})
    observations, rewards, terminations, truncations, infos = env.step({"a1": 0})
    observations["a0"], truncations["a0"] = np.zeros(2), False
    after = (observations, rewards, terminations | flag, truncations, infos)
    env.agents.append("a0")
    env.step = lambda actions: after  # type: ignore[method-assign]
    if flag.get("a0") is False:
        with pytest.raises(SimulationError, match=r"'a0', .*done in this episode.*new agent"):
            simulation.step({"a1": 0})
    else:
        assert simulation.step({"a1": 0}).observations.keys() == {"a1"}


class Shown(TwoAgents):
    """Shows and pays all possible agents in every step; only `agents` says which of them act."""

    possible_agents = ["a", "b", "c"]
    acting = [["a"], ["a", "b"], ["c", "b"], []]
    mask = spaces.MultiBinary(3)
    sees = spaces.Dict({"observation": spaces.Box(0, 9, (1,)), "action_mask": mask})
    does = spaces.Discrete(3, start=5)

    def state(self) -> Any:
        return np.arange(4).reshape(2, 2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.t, self.agents = 0, self.acting[0]
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert sorted(actions) == sorted(self.agents)
        self.t += 1
        self.agents = self.acting[self.t]
        return self._seen(), self._all(1.0), self._all(False), self._all(False), {}

    def _seen(self) -> dict[str, Any]:
        mask = np.array([1, 0, 1], np.int8)
        return self._all({"observation": np.full(1, float(self.t)), "action_mask": mask})

    def _all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)


@pytest.mark.parametrize("respawn", ["refuse", "same_id"])
def test_only_the_attribute_agents_says_who_acts_and_when_the_episode_is_over(
    respawn: Any, play: Play
) -> None:
    simulation = make_simulation(f"{__name__}:Shown", {}, respawn=respawn)
    assert simulation.state_size == 4, "found out by looking, for no state_space is declared"
    played = play(simulation)
    acted = [list(result.observations) for result in played.results]
    assert acted == [["a", "b"], ["b", "c"], []]
    assert [sorted(result.terminations) for result in played.results] == [[], ["a"], ["b", "c"]]
    assert [sorted(result.final_observations) for result in played.results][1] == ["a"]
    assert played.returns == dict.fromkeys("abc", 3.0), "the done are still paid"
    seen = played.results[0].observations["b"]
    assert (seen["observation"].dtype, seen["action_mask"].tolist()) == (np.float32, [1, 0, 1])
    state = simulation.state()
    assert state is not None
    assert state.tolist() == [0, 1, 2, 3]


def test_a_reset_after_which_nobody_acts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shown, "acting", [[]])
    with pytest.raises(SimulationError, match=r"after reset\(\) env.agents is \[\]"):
        make_simulation(f"{__name__}:Shown", {}).reset()
