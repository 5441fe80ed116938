from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
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
    """An RLlib environment of agents 0, 1 and 2; each row of the script is what one step returns.

    A row is (observed ids, rewards, terminateds, truncateds), where the flags are lists of ids.
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


def told(result: Any) -> tuple[Any, ...]:
    """Returns which agents are observed, paid, terminated, truncated, and observed for the last
    time."""
    ended = "".join(result.terminations), "".join(result.truncations)
    return "".join(result.observations), result.rewards, *ended, "".join(result.final_observations)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # Agent 1 is done, with a last observation; a step later it is paid and flagged as done
        # again. `__all__` concerns the agents still in the episode: 1 was done before, 2 was never
        # observed.
        ([([0, 1], {}, [1], []), ([0], {1: 2.0}, [1], []), ([0], {}, ["__all__"], [])],
         [("0", {}, "1", "", "1"), ("0", {"1": 2.0}, "", "", ""), ("", {}, "0", "", "0")]),
        # `__all__` as a truncation concerns the same agents.
        ([([0, 1], {}, [1], []), ([0], {}, [], ["__all__"])],
         [("0", {}, "1", "", "1"), ("", {}, "", "0", "0")]),
        # An agent's own flag comes before `__all__`.
        ([([0, 1], {}, [0], ["__all__"])], [("", {}, "0", "1", "01")]),
        # Only the agents that are observed act.
        ([([1], {}, [], []), ([0], {}, [], []), ([], {}, ["__all__"], [])],
         [("1", {}, "", "", ""), ("0", {}, "", "", ""), ("", {}, "01", "", "")]),
        # A step in which nobody acts is joined to the one after it.
        ([([], {0: 1.0}, [], []), ([], {0: 2.0, 1: 4.0}, [1], []), ([0], {0: 3.0}, [], []),
          ([], {}, [], ["__all__"])],
         [("0", {"0": 6.0, "1": 4.0}, "1", "", ""), ("", {}, "", "0", "")]),
        # The episode is over when all possible agents are done.
        ([([0], {}, [0, 1], [2])], [("", {}, "01", "2", "0")]),
    ],
)  # fmt: skip
def test_observations_rewards_and_flags_of_an_episode_s_steps_are_read_as_rllib_means_them(
    play: Play, script: Any, expected: Any
) -> None:
    results = play(simulation_of(*script)).results
    assert [told(result) for result in results] == expected
    infos = [i["__common__"]["steps"] for r in results for i in (*r.earlier_infos, r.infos)]
    assert infos == list(range(1, len(script) + 1)), "those of all steps, apart"


def test_an_agent_that_comes_back_is_refused_by_name() -> None:
    simulation = simulation_of(([0], {}, [1], []), ([0, 1], {}, [], []))
    simulation.reset()
    simulation.step({"0": 0, "1": 0})
    with pytest.raises(SimulationError, match=r"agent 1, .*done in this episode.*new agent id"):
        simulation.step({"0": 0})


def test_a_stuck_env_ends_as_an_error() -> None:
    simulation = simulation_of(*[([], {}, [], [])] * 10_001)
    simulation.reset()
    with pytest.raises(SimulationError, match="gave no agent an observation for 10000 steps"):
        simulation.step({"0": 0, "1": 0})


def test_nobody_has_to_be_observed_at_first(play: Play) -> None:
    simulation = simulation_of(
        ([], {0: 1.0}, [], []), ([1], {1: 2.0}, [], []), ([], {1: 4.0}, ["__all__"], []), first=[]
    )
    observations, infos = simulation.reset()
    assert observations.keys() == {"1"}
    assert infos["__common__"] == {"steps": 2}
    result = simulation.step({"1": 0})
    assert result.rewards == {"0": 1.0, "1": 6.0}
    assert result.is_over


def test_an_episode_that_is_over_before_anybody_is_observed_is_an_error() -> None:
    simulation = simulation_of(([], {}, ["__all__"], []), first=[])
    with pytest.raises(SimulationError, match="ended before any agent had an observation"):
        simulation.reset()


class Absent(Scripted):
    def _observe(self, agents: list[int]) -> dict[int, Any]:
        return dict.fromkeys(self.agents) | super()._observe(agents)


def test_an_observation_of_none_is_none(play: Play) -> None:
    script = [([1], {}, [], []), ([0, 2], {}, [1], []), ([], {}, ["__all__"], [])]
    played = play(make_simulation(f"{__name__}:Absent", {"script": script}))
    assert [sorted(result.observations) for result in played.results] == [["1"], ["0", "2"], []]
    assert played.results[1].terminations == {"1": True}


def test_an_agent_truncated_while_it_does_not_act_ends_with_its_observation_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    simulation = simulation_of(*[([0], {}, [], [])] * 2, ([0], {}, [], ["__all__"]))
    simulation.reset()
    for _ in range(2):
        assert simulation.step({"0": 0} | ({"1": 0} if _ == 0 else {})).observations.keys() == {"0"}
    result = simulation.step({"0": 0})
    assert result.truncations == {"0": True, "1": True}
    assert result.final_observations["1"] == np.float32(0.5)
    assert [r.args for r in caplog.records] == [(1,)]


def test_an_agent_that_acted_and_is_truncated_unobserved_has_no_final_observation() -> None:
    # The server refuses this truncation without a last observation, by the agent's name.
    simulation = simulation_of(([0], {}, [], [1]))
    simulation.reset()
    assert simulation.step({"0": 0, "1": 0}).final_observations == {}


def test_an_agent_comes_back_in_a_later_step() -> None:
    script = [([0, 1], {1: 5.0}, [1], []), ([0, 1], {}, [], []), ([0, 1], {1: 7.0}, [1], [])]
    simulation = make_simulation(f"{__name__}:Scripted", {"script": script}, respawn="same_id")
    simulation.reset()
    ended = simulation.step({"0": 0, "1": 0})
    assert (ended.terminations, ended.observations.keys()) == ({"1": True}, {"0"})
    assert ended.final_observations.keys() == {"1"}
    assert simulation.step({"0": 0}).observations.keys() == {"0", "1"}
    again = simulation.step({"0": 0, "1": 1})
    assert (again.terminations, again.rewards) == ({"1": True}, {"1": 7.0})


@pytest.mark.parametrize("is_cut", [False, True])
def test_an_agent_comes_back_in_the_step_of_its_end(is_cut: bool) -> None:
    flags: tuple[Any, ...] = ([], [1]) if is_cut else ([1], [])
    script = [([0, 1], {1: 5.0}, *flags), ([0, 1], {}, ["__all__"], [])]
    simulation = make_simulation(f"{__name__}:Scripted", {"script": script}, respawn="same_step")
    simulation.reset()
    result = simulation.step({"0": 0, "1": 0})
    assert result.observations.keys() == {"0", "1"}
    assert (result.truncations if is_cut else result.terminations) == {"1": True}
    # The value of a truncated life is bootstrapped from its last observation.
    assert result.final_observations.keys() == ({"1"} if is_cut else set())
    over = simulation.step({"0": 0, "1": 0})
    assert over.is_over
    assert over.terminations.keys() == {"0", "1"}


class Traffic(MultiAgentEnv):
    """Three cars at a time; in each step the oldest one leaves and a new one arrives."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.agents = self.possible_agents = [f"car_{i}" for i in range(config["declared"])]
        self.observation_spaces = dict.fromkeys(self.agents, BOX)
        self.action_spaces = dict.fromkeys(self.agents, spaces.Discrete(2))
        super().__init__()
        self.shows_last = config.get("shows_last", False)
        self.pays_others = config.get("pays_others", False)
        self.infos = config.get("infos", "dicts")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.live, self.t = [0, 1, 2], 0
        seen = self._observe(self.live)
        return seen if self.infos == "left out" else (seen, {} if self.infos == "dicts" else None)

    def _observe(self, cars: list[int]) -> dict[str, Any]:
        return {f"car_{i}": np.full(1, i / 100, np.float32) for i in cars}

    def step(self, action_dict: dict[str, Any]) -> tuple[Any, ...]:
        assert set(action_dict) == {f"car_{i}" for i in self.live}
        gone, new = self.live[0], self.live[-1] + 1
        self.live, self.t = [*self.live[1:], new], self.t + 1
        shown = [*self.live, gone] if self.shows_last else self.live
        rewards = {agent: float(agent.partition("_")[2]) for agent in action_dict}
        # Pays the new car for its arrival, and a car in the step after its end.
        if self.pays_others:
            rewards |= {f"car_{new}": 5.0, f"car_{gone - 1}": 100.0}
        ends = {f"car_{gone}": True, "__all__": self.t == 20}
        infos = {} if self.infos == "dicts" else None
        return self._observe(shown), rewards, ends, {"__all__": False}, infos


def episode_of(simulation: Any) -> Iterator[tuple[Any, Any]]:
    """Plays an episode of actions 0; yields what the agents observe before each step, and its
    result."""
    seen, _ = simulation.reset()
    while seen:
        result = simulation.step(dict.fromkeys(seen, 0))
        yield seen, result
        seen = result.observations


@pytest.mark.parametrize("infos", ["dicts", "none", "left out"])
@pytest.mark.parametrize("shows_last", [False, True])
@pytest.mark.parametrize("declared", [3, 5])
def test_new_ids_without_bound_take_places(declared: int, shows_last: bool, infos: str) -> None:
    config = {"declared": declared, "shows_last": shows_last, "infos": infos}
    simulation = make_simulation(f"{__name__}:Traffic", config, respawn="new_ids")
    for _ in range(2):
        total = 0.0
        for seen, result in episode_of(simulation):
            cars = sorted(round(float(o[0]) * 100) for o in seen.values())
            total += sum(result.rewards.values())
            (gone,) = result.terminations if not result.is_over else [None]
            if shows_last and gone:
                assert round(float(result.final_observations[gone][0]) * 100) == cars[0]
        assert result.is_over
        assert total == sum(3 * t + 3 for t in range(20))


class Endless(Traffic):
    """One car at a time, which is paid once more in the step after its end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.t = 0
        return self._observe([0]), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[Any, ...]:
        self.t += 1
        paid = {f"car_{self.t - 2}": 3.0} if self.t > 1 else {}
        return self._observe([self.t]), paid, {f"car_{self.t - 1}": True}, {}, {}


class OneWayTraffic(Traffic):
    """Traffic in which the mask in a car's infos allows one action only: its number modulo 2."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset()
        return self._observe(self.live), self._masks()

    def _masks(self) -> dict[str, Any]:
        return {f"car_{i}": {"action_mask": np.eye(2, dtype=np.int8)[i % 2]} for i in self.live}

    def step(self, action_dict: dict[str, Any]) -> tuple[Any, ...]:
        assert all(action == int(car[4:]) % 2 for car, action in action_dict.items())
        return *super().step(action_dict)[:-1], self._masks()


@pytest.mark.parametrize("declared", [3, 5])
def test_an_agent_under_a_new_id_has_the_mask_in_its_infos(declared: int) -> None:
    config = {"declared": declared}
    simulation = make_simulation(f"{__name__}:OneWayTraffic", config, respawn="new_ids")
    seen, _ = simulation.reset()
    while seen:
        chosen = {car: int(observed["action_mask"].argmax()) for car, observed in seen.items()}
        seen = simulation.step(chosen).observations


class ClosedAtTheEnd(OneWayTraffic):
    """The infos of a car that leaves allow nothing; those of a new one have no mask."""

    def step(self, action_dict: dict[str, Any]) -> tuple[Any, ...]:
        gone = f"car_{self.live[0]}"
        return *Traffic.step(self, action_dict)[:-1], {gone: {"action_mask": np.zeros(2, np.int8)}}


def test_the_mask_of_an_agent_that_has_left_is_not_that_of_the_next() -> None:
    simulation = make_simulation(f"{__name__}:ClosedAtTheEnd", {"declared": 3}, respawn="new_ids")
    simulation.reset()
    seen = simulation.step(dict.fromkeys(simulation.possible_agents, 0)).observations
    assert all(one["action_mask"].tolist() == [1, 1] for one in seen.values())


def test_an_episode_under_ever_new_ids_remembers_the_newest() -> None:
    simulation: Any = make_simulation(f"{__name__}:Endless", {"declared": 3}, respawn="new_ids")
    steps = itertools.islice(episode_of(simulation), 3_000)
    total = sum(sum(result.rewards.values()) for _, result in steps)
    assert total == 3.0 * 2_999
    assert len(simulation._places._former_place) == 1_000


@pytest.mark.parametrize(("declared", "num_paid"), [(3, 0), (5, 19)])
def test_an_agent_that_does_not_act_is_paid_in_a_place_of_its_own(
    declared: int, num_paid: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"declared": declared, "pays_others": True}
    simulation = make_simulation(f"{__name__}:Traffic", config, respawn="new_ids")
    total = 0.0
    for seen, result in episode_of(simulation):
        # A car that acts is never paid another car's reward.
        assert all(reward < 100.0 for a, reward in result.rewards.items() if a in seen)
        total += sum(result.rewards.values())
    assert total == sum(3 * t + 3 for t in range(20)) + 105.0 * num_paid
    (warning,) = caplog.messages  # from the first step, in which car_-1 had no place
    assert "got the reward" in warning


def test_more_new_ids_than_places_are_refused() -> None:
    with pytest.raises(SimulationError, match="new agent 'car_2', but all 2 agents of its kind"):
        make_simulation(f"{__name__}:Traffic", {"declared": 2}, respawn="new_ids").reset()


ids = st.sets(st.integers(0, 2)).map(sorted)
rewards = st.dictionaries(st.integers(0, 2), st.integers(-9, 9).map(float))
rows = st.lists(st.tuples(ids, rewards, ids, ids), max_size=6)


def without_returns(script: list[Any]) -> list[Any]:
    """Removes observations of agents that were done before, which RLlib forbids."""
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
    num_steps = len(simulation._env.actions)  # the episode may be over before the script is
    given: dict[str, float] = {}
    for _, paid, _, _ in [*script, ([], {}, [], [])][:num_steps]:
        for agent, reward in paid.items():
            given[str(agent)] = given.get(str(agent), 0.0) + reward
    assert played.returns == given
    assert {"0", "1"} <= set(played.terminated + played.truncated)


def test_the_config_may_be_named_as_the_class_names_it() -> None:
    named = make_simulation(f"{__name__}:Traffic", {"config": {"declared": 3}}, respawn="new_ids")
    assert named.possible_agents == ("car_0", "car_1", "car_2")


def test_rllibs_multi_agent_environment_of_single_agents_plays(play: Play) -> None:
    """A plain function makes the environment, and gets the config as its argument."""
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
    message = r"with_agent_groups, whose groups {'pair': \[0, 1\]} belong in a server's 'groups'"
    with pytest.raises(SimulationError, match=f"{message}.*no action space for agent 1"):
        adapt(env)
