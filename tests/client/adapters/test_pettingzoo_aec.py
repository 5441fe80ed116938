from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import AECEnv
from pettingzoo.utils.agent_selector import AgentSelector

from muxrl.client.adapters import SimulationError, make_simulation
from muxrl.client.adapters.pettingzoo_aec import PettingZooAEC

Play = Callable[..., Any]


class LastCoin(AECEnv):
    """Agents take one to three coins in turn; an action mask shows how many an agent may take.

    A coin is worth 1 to the agent that takes it and costs each other live agent 0.5. An agent that
    has taken `limit` coins leaves, truncated. The agent that takes the last coin ends the game for
    all and is paid 5, which the others lose. Every reward that is given is also written down.
    """

    def __init__(self, num_agents: int = 3, num_coins: int = 12, limit: int = 6) -> None:
        super().__init__()
        self.possible_agents = [f"player_{i}" for i in range(num_agents)]
        self.num_coins, self.limit = num_coins, limit
        observation = {
            "observation": spaces.Box(0, 99, (2,), np.float32),
            "action_mask": spaces.Box(0, 1, (3,), np.int8),
        }
        self.observation_spaces = {a: spaces.Dict(observation) for a in self.possible_agents}
        self.action_spaces = {a: spaces.Discrete(3) for a in self.possible_agents}
        self.ends_abruptly = False
        self.buffer = np.zeros(2, np.float32)  # what the agent that observed last has seen

    def observe(self, agent: str) -> dict[str, Any]:
        mask = (np.arange(3) < max(self.coins, 1)).astype(np.int8)
        self.buffer[:] = self.coins, self.possible_agents.index(agent)
        return {"observation": self.buffer, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.coins, self.taken = self.num_coins, dict.fromkeys(self.agents, 0)
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.selector = AgentSelector(self.agents)
        self.agent_selection = self.selector.next()
        self.given: dict[str, float] = defaultdict(float)

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        num_coins = min(action + 1, self.coins)
        self._cumulative_rewards[agent] = 0.0
        self.coins -= num_coins
        self.taken[agent] += num_coins
        is_over = self.coins == 0
        self.rewards = {
            a: (num_coins + 5.0 * is_over) * (1.0 if a == agent else -0.5) for a in self.agents
        }
        for a, reward in self.rewards.items():
            self.given[a] += reward
        self._accumulate_rewards()
        self.agent_selection = self.selector.next()
        if is_over:
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.taken[agent] >= self.limit:
            self.truncations[agent] = True
            self.selector.reinit([a for a in self.selector.agent_order if a != agent])
            while self.selector.agent_order and self.agent_selection != self.selector.next():
                pass
        self.infos = {a: {"taken": self.taken[a]} for a in self.agents}
        if is_over and self.ends_abruptly:
            self.agents = []
            return
        self._deads_step_first()


coins = st.integers(1, 30)


@given(st.integers(1, 4), coins, st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_every_reward_is_routed_once_and_every_agent_is_done_once(
    play: Play, num_agents: int, num_coins: int, limit: int, seed: int, ends_abruptly: bool
) -> None:
    env = LastCoin(num_agents, num_coins, limit)
    env.ends_abruptly = ends_abruptly
    played = play(PettingZooAEC(env), seed=seed)
    assert {a: r for a, r in played.returns.items() if r} == {
        a: r for a, r in env.given.items() if r
    }
    everybody_left = all(taken >= limit for taken in env.taken.values())
    assert env.coins == 0 or everybody_left
    assert set(played.terminated + played.truncated) == set(env.possible_agents)
    if env.coins:
        assert not played.terminated
    for result in played.results:
        for agent, seen in (result.observations | result.final_observations).items():
            assert seen["observation"][1] == env.possible_agents.index(agent), "not aliased"


@pytest.mark.parametrize("ends_abruptly", [False, True])
def test_last_infos_are_seen_however_the_game_ends(play: Play, ends_abruptly: bool) -> None:
    env = LastCoin(num_agents=2, num_coins=5)
    env.ends_abruptly = ends_abruptly
    *earlier, last = play(PettingZooAEC(env)).results
    assert last.is_over
    assert last.infos == {agent: {"taken": n} for agent, n in env.taken.items()}
    assert all(result.infos.keys() == result.observations.keys() for result in earlier)


def test_one_agent_at_a_time_is_paid_for_all_since_it_last_acted() -> None:
    simulation = make_simulation(f"{__name__}:LastCoin", {"num_agents": 3, "num_coins": 9})
    observations, _ = simulation.reset()
    assert observations.keys() == {"player_0"}
    assert observations["player_0"]["action_mask"].tolist() == [1, 1, 1]

    result = simulation.step({"player_0": 1})
    assert result.observations.keys() == {"player_1"}
    assert result.rewards == {"player_1": -1.0}, "before its first move, by player_0's"
    simulation.step({"player_1": 0})
    result = simulation.step({"player_2": 0})
    assert result.observations.keys() == {"player_0"}
    assert result.rewards == {"player_0": 2.0 - 0.5 - 0.5}

    simulation.step({"player_0": 1})
    result = simulation.step({"player_1": 2})
    assert result.is_over
    assert result.observations == {}
    assert result.terminations == dict.fromkeys(simulation.possible_agents, True)
    assert result.final_observations.keys() == set(simulation.possible_agents)
    assert result.rewards == {
        "player_0": 2.0 - 4.0,
        # The costs of player_2's and player_0's moves were paid when its turn came.
        "player_1": 8.0,
        "player_2": 1.0 - 1.0 - 4.0,
    }


def test_agents_that_are_dropped_at_a_time_limit_are_observed_once_more(play: Play) -> None:
    class TimeLimit(LastCoin):
        def step(self, action: int | None) -> None:
            super().step(action)
            self.truncations = dict.fromkeys(self.agents, True)
            self.agents = []

    (result,) = play(PettingZooAEC(TimeLimit())).results
    assert result.is_over
    assert set(result.truncations) == set(result.final_observations) == {
        "player_0", "player_1", "player_2"
    }  # fmt: skip


@pytest.mark.parametrize("game", ["simple_spread_v3", "simple_tag_v3", "simple_reference_v3"])
def test_aec_and_parallel_of_one_env_give_the_same_returns(play: Play, game: str) -> None:
    kwargs = {"max_cycles": 8}
    parallel = make_simulation(f"mpe2.{game}:parallel_env", kwargs)
    turns = make_simulation(f"mpe2.{game}:env", kwargs)
    assert isinstance(turns, PettingZooAEC)
    assert turns.observation_spaces == parallel.observation_spaces
    assert turns.state_size == parallel.state_size

    def chooser() -> Callable[[str, Any], int]:
        streams = {
            agent: np.random.default_rng(i) for i, agent in enumerate(parallel.possible_agents)
        }
        return lambda agent, _: int(streams[agent].integers(parallel.action_spaces[agent].n))

    at_once = play(parallel, chooser(), seed=3)
    in_turn = play(turns, chooser(), seed=3)
    assert len(in_turn.results) == len(at_once.results) * len(parallel.possible_agents)
    assert in_turn.returns == pytest.approx(at_once.returns)
    assert set(in_turn.truncated) == set(at_once.truncated) == set(parallel.possible_agents)
    np.testing.assert_equal(
        in_turn.results[-1].final_observations, at_once.results[-1].final_observations
    )


def test_an_env_that_does_not_bury_its_dead_is_told_so() -> None:
    env = LastCoin(num_coins=1)
    simulation = PettingZooAEC(env)
    simulation.reset()
    env._was_dead_step = lambda action: None  # type: ignore[method-assign]
    with pytest.raises(SimulationError, match="_was_dead_step"):
        simulation.step({"player_0": 0})
