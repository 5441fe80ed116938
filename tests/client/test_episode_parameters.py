"""The parameters drawn for an episode, and how each kind of environment gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.utils.conversions import parallel_to_aec
from tests.client.scripted_envs import TwoAgents
from tests.client.test_vector_loop import NumberServer

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import Simulation, SimulationError, adapt
from muxrl.client.adapters.factory import adapt_vector
from muxrl.client.adapters.simulation import COMMON
from muxrl.client.adapters.vector_simulation import OnlyCopy
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.episode_parameters import draw
from muxrl.protocol.messages import AnyItem, AnyReply, Started, StartEpisode
from muxrl.protocol.run_messages import PARAMETERS

SPEEDS = {
    "speed": {"low": 1.0, "high": 3.0},
    "cars": {"low": 1, "high": 3},
    "size": {"choice": [2, 8]},
}
BOX = spaces.Box(-np.inf, np.inf, (1,), np.float32)


@given(st.integers(0, 2**32))
def test_a_seed_draws_the_same_values_of_each_name_by_itself(seed: int) -> None:
    drawn = draw({**SPEEDS, "height": 4}, seed)
    assert 1.0 <= drawn["speed"] <= 3.0
    assert drawn["cars"] in (1, 2, 3)
    assert isinstance(drawn["cars"], int)
    assert drawn["size"] in (2, 8)
    assert drawn["height"] == 4
    assert draw(dict(reversed(SPEEDS.items())), seed) == {n: drawn[n] for n in SPEEDS}
    assert draw({"cars": SPEEDS["cars"]}, seed) == {"cars": drawn["cars"]}


def test_draws_are_uniform_and_differ_between_episodes_and_names() -> None:
    drawn = [draw({**SPEEDS, "other": SPEEDS["speed"]}, seed) for seed in range(3000)]
    assert np.mean([one["speed"] for one in drawn]) == pytest.approx(2.0, abs=0.04)
    assert np.bincount([int(one["cars"]) for one in drawn])[1:] == pytest.approx(1000, abs=110)
    assert np.corrcoef([[o["speed"], o["other"]] for o in drawn], rowvar=False)[0, 1] < 0.08
    assert draw(SPEEDS, None) != draw(SPEEDS, None)


class OneAgent(gymnasium.Env[Any, Any]):
    """Its agent observes the speed that its episode was given, and is paid it in each of two
    steps."""

    observation_space, action_space = BOX, spaces.Discrete(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.speed = 0, (options or {}).get("speed", 0)
        return np.full(1, self.speed, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.speed, np.float32), self.speed, self.t == 2, False, {}


class Parallel(TwoAgents):
    possible_agents, sees = ("agent",), BOX

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["agent"]
        return {"agent": np.full(1, (options or {}).get("speed", 0), np.float32)}, {"agent": {}}


@pytest.mark.parametrize(
    "make",
    [
        lambda: adapt(OneAgent()),
        lambda: adapt(Parallel()),
        lambda: adapt(parallel_to_aec(Parallel())),
        lambda: OnlyCopy(
            adapt_vector(SyncVectorEnv([OneAgent], autoreset_mode=AutoresetMode.DISABLED))
        ),
    ],
    ids=["gymnasium", "parallel", "aec", "vector"],
)
def test_environments_are_told_by_the_options_of_their_reset(
    make: Callable[[], Simulation],
) -> None:
    simulation = make()
    for speed in (3, 5):
        observations, _ = simulation.reset(1, {"speed": speed})
        assert observations["agent"].tolist() == [speed]
    observations, _ = simulation.reset(2)
    assert observations["agent"].tolist() == [0], "those were of an episode"


def test_an_environment_whose_reset_takes_no_options_is_refused() -> None:
    class Deaf(OneAgent):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
            return super().reset(seed=seed)

    assert adapt(Deaf()).reset(1)
    with pytest.raises(SimulationError, match=r"\['speed'\].*takes no options"):
        adapt(Deaf()).reset(1, {"speed": 3})


def players() -> NumberServer:
    """Returns a server of the agent 'agent'."""
    return NumberServer("all", ["agent"], [])


def values_of(results: list[EpisodeResult], name: str) -> list[float]:
    return [one.metrics[name][COMMON] for one in results]


def test_a_loop_gives_each_episode_its_own_and_records_them() -> None:
    results: list[EpisodeResult] = []
    server = players()
    how: Any = {"seeds": iter(range(6)), "parameters": {"speed": SPEEDS["speed"]}}
    loop = EnvLoop([adapt(OneAgent())], MultiplexingClient([server]), **how)

    def note(result: EpisodeResult) -> None:
        results.append(result)
        if len(results) == 3:
            loop.parameters = {"speed": 7}  # for the episodes that begin from now on

    loop.run(note)
    expected = [draw(how["parameters"], seed)["speed"] for seed in range(3)] + [7] * 3
    assert values_of(results, "speed") == expected
    assert [one.returns["agent"] / 2 for one in results] == expected


def test_copies_get_their_parameters_one_by_one() -> None:
    results: list[EpisodeResult] = []
    vector = SyncVectorEnv([OneAgent] * 3, autoreset_mode=AutoresetMode.DISABLED)
    how: Any = {"seeds": iter(range(100)), "parameters": {"speed": SPEEDS["speed"]}}
    loop = EnvLoop(adapt_vector(vector), MultiplexingClient([players()]), **how)
    loop.run(results.append, should_stop=lambda: len(results) == 9)
    played = values_of(results, "speed")
    assert len(set(played)) == 9
    assert [one.returns["agent"] / 2 for one in results] == pytest.approx(played)


def test_copies_that_reset_by_themselves_are_refused() -> None:
    vector = adapt_vector(SyncVectorEnv([OneAgent], autoreset_mode=AutoresetMode.NEXT_STEP))
    with pytest.raises(SimulationError, match=r"'NextStep'.*'Disabled'"):
        OnlyCopy(vector).reset(1, {"speed": 3})


def test_behind_a_gateway_a_loop_waits_for_its_parameters_before_it_resets() -> None:
    server, results = players(), []
    server._spec = msgspec.structs.replace(server._spec, offers=[PARAMETERS])
    speeds = iter([3, 5])

    def script(item: AnyItem) -> AnyReply | None:
        if not isinstance(item, StartEpisode):
            return None
        server.open[item.episode_id], server.steps[item.episode_id] = {}, 0
        return Started(item.episode_id, parameters={"speed": next(speeds)})

    server.script = script
    with MultiplexingClient([server]) as client:
        EnvLoop([adapt(OneAgent())], client, seeds=iter([0, 1])).run(results.append)
        assert values_of(results, "speed") == [3, 5]
        speeds = iter([9])
        client.start_episode()
        assert client.parameters == {"speed": 9}
