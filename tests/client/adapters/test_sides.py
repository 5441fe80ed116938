"""Sides that swap: which agent plays which, and which sides are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tests.client.scripted_envs import Counting

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import SimulationError, adapt_vector, make_simulation, with_sides
from muxrl.client.adapters.simulation import COMMON
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.random_policy import RandomTransport
from muxrl.protocol.values import sample_action

GAMES = "kuhn_poker", "matrix_rps", "leduc_poker(players=3)"


@pytest.mark.parametrize("game", GAMES)
@given(st.integers(0, 10_000), st.integers(0, 4))
def test_an_agent_sees_does_and_earns_what_its_seat_does(game: str, seed: int, by: int) -> None:
    plain = make_simulation(f"open_spiel:{game}", {})
    seats = plain.possible_agents
    swapped = with_sides(make_simulation(f"open_spiel:{game}", {}), {"side": {"sides": seats}})
    agent_in = {seats[(i + by) % len(seats)]: agent for i, agent in enumerate(seats)}
    rng = np.random.default_rng(seed)
    seen, _ = plain.reset(seed)
    theirs, _ = swapped.reset(seed, {"side": by})
    is_over = False
    while not is_over:
        np.testing.assert_equal({agent_in[seat]: value for seat, value in seen.items()}, theirs)
        actions = {s: sample_action(plain.action_spaces[s], seen[s], rng) for s in seen}
        result = plain.step(actions)
        other = swapped.step({agent_in[seat]: action for seat, action in actions.items()})
        for mine, its in zip(result[:-2], other[:-2], strict=True):
            assert {agent_in[seat] for seat in mine} == its.keys()  # type: ignore[union-attr]
        assert {agent_in[seat]: reward for seat, reward in result.rewards.items()} == other.rewards
        seen, theirs, is_over = result.observations, other.observations, other.is_over
        assert is_over == result.is_over


def test_teams_swap_in_half_of_the_episodes_which_record_it() -> None:
    parameters = {"side": {"sides": [["player_[01]"], ["player_2", "player_3"]]}}
    made = make_simulation("open_spiel:leduc_poker", {"players": 4})
    results: list[EpisodeResult] = []
    simulation = with_sides(made, parameters)
    agents = {a: (made.observation_spaces[a], made.action_spaces[a]) for a in made.possible_agents}
    with MultiplexingClient({"random": RandomTransport.for_agents(agents, 0)}) as client:
        loop = EnvLoop([simulation], client, seeds=iter(range(200)), parameters=parameters)
        loop.run(results.append)
    assert 70 < sum(result.metrics["side"][COMMON] for result in results) < 130


class Parts(Counting):
    """Agents observe their own index, in a Dict and in a Tuple."""

    space = spaces.Box(0, 9, (1,), np.float32)
    both = spaces.Tuple([space, spaces.Discrete(9)])
    observation_spaces = dict.fromkeys("ab", spaces.Dict({"who": space, "both": both}))

    def seen(self) -> dict[str, Any]:
        who = [np.full((self.num_envs, 1), i, np.float32) for i in range(2)]
        return {
            a: {"who": one, "both": (one, one[:, 0].astype(int))}
            for a, one in zip("ab", who, strict=True)
        }

    def step(self, actions: Any) -> Any:
        *others, _ = super().step(actions)
        return *others, {a: {"i": np.full(2, i), "all": np.array(7)} for i, a in enumerate("ab")}


def test_all_parts_of_what_copies_observe_swap() -> None:
    vector = with_sides(adapt_vector(Parts(9, 9)), {"side": {"sides": ["a", "b"]}}, is_vector=True)
    vector.reset()
    for copy, side in enumerate([1, 0]):
        vector.begin(copy, None, {"side": side})
    step = vector.step({a: np.zeros(2, int) for a in "ab"})
    for agent, expected in (("a", [1, 0]), ("b", [0, 1])):
        seen = step.observations[agent]
        for part in (seen["who"][:, 0], seen["both"][0][:, 0], seen["both"][1]):
            assert part.tolist() == expected
        assert step.rewards[agent].tolist() == [0.5 + who for who in expected]
        assert step.infos[agent]["i"].tolist() == expected


@pytest.mark.parametrize(
    ("sides", "says"),
    [
        (["adversary_0", "agent_0"], "adversary_0 and agent_0 cannot swap: .* in their spaces"),
        ([["adversary_0"], ["adversary_1", "adversary_2"]], "cannot swap: their agents differ in"),
        (["adversary_0", "adversary_*"], "an agent can be on one side only"),
        (["adversary_0", "prey"], "side 'prey' matches no agent"),
    ],
)
def test_sides_that_cannot_swap_are_refused(sides: Any, says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        with_sides(make_simulation("mpe2.simple_tag_v3:parallel_env", {}), {"x": {"sides": sides}})
