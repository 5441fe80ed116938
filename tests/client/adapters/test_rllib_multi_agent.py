from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from muxrl.client.adapters import SimulationError, adapt, make_simulation
from muxrl.client.adapters.rllib_multi_agent import RLlibMultiAgent
from muxrl.protocol.spaces import Discrete

Play = Callable[..., Any]
BOX = spaces.Box(-1, 1, (1,), np.float32)


class Scripted(MultiAgentEnv):
    """Agents 0, 1, 2; each row of the script is what one step returns.

    A row is (observed ids, rewards, terminateds, truncateds), its flags lists of ids.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.possible_agents = self.agents = [0, 1, 2]
        self.observation_spaces = dict.fromkeys(self.agents, BOX)
        self.action_spaces = dict.fromkeys(self.agents, spaces.Discrete(2))
        super().__init__()
        self.script = config["script"]
        self.first = config.get("first", [0, 1])
        self.actions: list[dict[int, Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.rows = iter(self.script)
        return self._observe(self.first), {0: {"seed": seed}, "__common__": {}}

    def step(self, action_dict: dict[int, Any]) -> tuple[Any, ...]:
        self.actions.append(action_dict)
        observed, rewards, terminated, truncated = next(self.rows)
        return (
            self._observe(observed),
            rewards,
            {"__all__": False} | dict.fromkeys(terminated, True),
            {"__all__": False} | dict.fromkeys(truncated, True),
            {"__common__": {"steps": len(self.actions)}, "elsewhere": {}},
        )

    def _observe(self, agents: list[int]) -> dict[int, Any]:
        return {agent: np.full(1, 0.5, np.float64) for agent in agents}


def simulation_of(*script: Any, **config: Any) -> RLlibMultiAgent:
    made = make_simulation(f"{__name__}:Scripted", {"script": list(script), **config})
    assert isinstance(made, RLlibMultiAgent)
    return made


def test_integer_ids_become_strings_and_go_back(play: Play) -> None:
    simulation = simulation_of(([0, 1, 2], {0: 1, 2: 3}, [], []), ([], {}, ["__all__"], []))
    assert simulation.possible_agents == ("0", "1", "2")
    observations, infos = simulation.reset(seed=9)
    assert infos == {"0": {"seed": 9}, "__common__": {}}
    assert observations["0"].dtype == np.float32
    result = simulation.step({"1": 1, "0": 0})
    assert simulation._env.actions == [{0: 0, 1: 1}]
    assert result.observations.keys() == {"0", "1", "2"}
    assert result.rewards == {"0": 1.0, "2": 3.0}


@pytest.mark.parametrize("key", ["terminations", "truncations"])
def test_all_is_resolved_to_the_agents_still_in_the_episode(play: Play, key: str) -> None:
    flags = ([], ["__all__"]) if key == "truncations" else (["__all__"], [])
    played = play(
        simulation_of(
            ([0, 1], {}, [1], []),  # agent 1 is done, with an observation
            ([0], {1: 2.0}, [1], []),  # paid and flagged once more
            ([0], {}, *flags),
        )
    )
    first, second, third = played.results
    assert first.terminations == {"1": True}
    assert first.final_observations.keys() == {"1"}
    assert second.terminations == {}
    assert second.rewards == {"1": 2.0}
    assert getattr(third, key) == {"0": True}, "1 was done before, 2 was never there"
    assert third.final_observations.keys() == {"0"}
    assert third.is_over


def test_an_agents_own_flag_comes_before_all(play: Play) -> None:
    (result,) = play(simulation_of(([0, 1], {}, [0], ["__all__"]))).results
    assert result.terminations == {"0": True}
    assert result.truncations == {"1": True}


def test_only_the_observed_act(play: Play) -> None:
    played = play(simulation_of(([1], {}, [], []), ([0], {}, [], []), ([], {}, ["__all__"], [])))
    assert [set(result.observations) for result in played.results] == [{"1"}, {"0"}, set()]
    assert played.results[-1].terminations == {"0": True, "1": True}
    assert played.results[-1].final_observations == {}


def test_who_comes_back_is_refused_by_name() -> None:
    simulation = simulation_of(([0], {}, [1], []), ([0, 1], {}, [], []))
    simulation.reset()
    simulation.step({"0": 0, "1": 0})
    with pytest.raises(SimulationError, match=r"agent 1 again.*done in this episode.*new agent id"):
        simulation.step({"0": 0})


def test_steps_in_which_nobody_acts_are_not_seen(play: Play) -> None:
    simulation = simulation_of(
        ([], {0: 1.0}, [], []),
        ([], {0: 2.0, 1: 4.0}, [1], []),
        ([0], {0: 3.0}, [], []),
        ([], {}, [], ["__all__"]),
    )
    first, second = play(simulation).results
    assert first.rewards == {"0": 6.0, "1": 4.0}
    assert first.terminations == {"1": True}
    assert first.observations.keys() == {"0"}
    assert second.truncations == {"0": True}
    infos = [infos["__common__"]["steps"] for infos in (*first.earlier_infos, first.infos)]
    assert infos == [1, 2, 3], "those of all steps, apart"
    assert (second.earlier_infos, second.infos) == ((), {"__common__": {"steps": 4}})


def test_an_episode_is_over_when_all_possible_agents_are_done(play: Play) -> None:
    (result,) = play(simulation_of(([0], {}, [0, 1], [2]))).results
    assert result.is_over
    assert result.truncations == {"2": True}


def test_a_stuck_env_ends_as_an_error() -> None:
    simulation = simulation_of(*[([], {}, [], [])] * 10_001)
    simulation.reset()
    with pytest.raises(SimulationError, match="observed nobody for 10000 steps"):
        simulation.step({"0": 0, "1": 0})


def test_a_reset_that_observes_nobody_is_an_error() -> None:
    with pytest.raises(SimulationError, match="observed nobody"):
        simulation_of(first=[]).reset()


ids = st.sets(st.integers(0, 2)).map(sorted)
rewards = st.dictionaries(st.integers(0, 2), st.integers(-9, 9).map(float))
rows = st.lists(st.tuples(ids, rewards, ids, ids), max_size=6)


def without_returns(script: list[Any]) -> list[Any]:
    """Nobody is observed who was done before; RLlib forbids it."""
    done: set[int] = set()
    kept = []
    for observed, paid, terminated, truncated in script:
        kept.append(([a for a in observed if a not in done], paid, terminated, truncated))
        done.update(terminated, truncated)
    return kept


@given(rows.map(without_returns), st.booleans(), st.booleans())
def test_every_reward_is_routed_once_and_every_agent_is_done_once(
    play: Play, script: list[Any], is_terminated: bool, is_truncated: bool
) -> None:
    ends = ["__all__"] * is_terminated, ["__all__"] * (is_truncated or not is_terminated)
    simulation = RLlibMultiAgent(Scripted({"script": [*script, ([], {}, *ends)]}))
    played = play(simulation)
    num_steps = len(simulation._env.actions)  # it may be over before the script is
    given: dict[str, float] = {}
    for _, paid, _, _ in [*script, ([], {}, [], [])][:num_steps]:
        for agent, reward in paid.items():
            given[str(agent)] = given.get(str(agent), 0.0) + reward
    assert played.returns == given
    assert {"0", "1"} <= set(played.terminated + played.truncated)


def test_a_plain_creator_function_gets_the_config_too(play: Play) -> None:
    script = [([], {}, ["__all__"], [])]
    assert play(make_simulation(f"{__name__}:create", {"script": script})).results[0].is_over


def create(config: dict[str, Any]) -> MultiAgentEnv:
    return Scripted(config)


def test_rllibs_own_made_of_single_agents(play: Play) -> None:
    played = play(make_simulation(f"{__name__}:two_poles", {"num_agents": 2}))
    assert set(played.terminated) == {"0", "1"}


def two_poles(config: dict[str, Any]) -> MultiAgentEnv:
    from ray.rllib.env.multi_agent_env import make_multi_agent

    return make_multi_agent("CartPole-v1")(config)


def grouped(config: dict[str, Any]) -> Any:
    env = Scripted(config)
    both = spaces.Tuple([BOX, BOX]), spaces.Tuple([spaces.Discrete(2)] * 2)
    return env.with_agent_groups({"pair": [0, 1]}, *both)


def test_with_agent_groups_the_agents_inside_play(play: Play) -> None:
    script = [([0, 1], {0: 1.0, 1: 2.0}, ["__all__"], [])]
    simulation = make_simulation(f"{__name__}:grouped", {"script": script})
    assert simulation.possible_agents == ("0", "1", "2")
    assert simulation.action_spaces["1"] == Discrete(2)
    assert play(simulation).returns == {"0": 1.0, "1": 2.0}


def test_with_agent_groups_of_agents_without_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    env = grouped({"script": []})
    del env.env.action_spaces[1]
    message = r"with_agent_groups, whose groups {'pair': \[0, 1\]} belong into a server's 'groups'"
    with pytest.raises(SimulationError, match=f"{message}.*no action space of agent 1"):
        adapt(env)
