"""Plain simulations in lockstep: in rows, servers get what they get from each simulation alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.client.scripted_servers import CountingSimulation, Server, World
from tests.client.test_vector_loop import NumberServer, RowServer

from muxrl.client.adapters.simulation import StepResult
from muxrl.protocol.messages import ActionRows, AnyItem, AnyReply, StartEpisode, StepRows
from muxrl.protocol.rows import Layout, singles

NUM = 20
"""Number of simulations. With two agents in each, on two servers, that is enough for rows."""


class Restless(CountingSimulation):
    """An environment whose agent b pauses, leaves for good, or gets no reward, now and then.

    It may be paid after it has left. The length of an episode varies.
    """

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        self._rng = np.random.default_rng(seed)
        self._num_steps = int(self._rng.integers(1, 12))
        self._has_left = False
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> StepResult:
        result = super().step(actions)
        draw = self._rng.random()
        rewards = {a: float(self._rng.normal()) for a in result.rewards}
        observations = dict(result.observations)
        terminations = dict(result.terminations)
        if self._has_left:
            if draw < 0.5:
                rewards.pop("b")
            terminations.pop("b", None)
        if result.is_over or self._has_left:
            observations.pop("b", None)
        elif draw < 0.1:
            self._has_left = terminations["b"] = True
            observations.pop("b")
        elif draw < 0.25:
            observations.pop("b")
        elif draw < 0.3:
            rewards.pop("b")
        elif draw < 0.35:
            observations = dict(reversed(observations.items()))
        return result._replace(
            rewards=rewards, observations=observations, terminations=terminations,
            final_observations={},
        )  # fmt: skip


def everything_heard(server: Server) -> list[list[Any]]:
    """Returns the items that a server received, by episode in the order of their starts."""
    received = []
    for start in server.of(StartEpisode):
        items = [
            msgspec.to_builtins(item, enc_hook=lambda array: array.tolist())
            for item in server.of(object, start.episode_id)
        ]
        for item in items:
            del item["episode_id"]
            item["rewards"] = {a: reward for a, reward in item.get("rewards", {}).items() if reward}
        received.append(items)
    return received


def play(kind: type[NumberServer], num: int = 3 * NUM, num_episodes: int = 200) -> World:
    # The right server has c, too, which acts on while b pauses, and is paid.
    world = World(kind, right="bc")
    simulations = [Restless("abc") for _ in range(num)]
    world.play(simulations, range(num_episodes))
    assert world.client.num_mismatches == 0
    assert world.left.open == world.right.open == world.client._episodes == {}
    world.log = [("actions", repr(one.actions)) for one in simulations]
    return world


def rows_in(world: World) -> list[int]:
    """Returns the number of episodes in each item of rows."""
    items = [item for frame in world.left.frames for item in frame]
    return [len(item.episode_ids) for item in items if isinstance(item, StepRows)]


def test_servers_get_the_same_in_rows_as_from_each_simulation_alone() -> None:
    in_rows, alone = play(RowServer), play(NumberServer)
    assert len(in_rows.left.of(StartEpisode)) == 200
    assert everything_heard(in_rows.left) == everything_heard(alone.left)
    assert everything_heard(in_rows.right) == everything_heard(alone.right)
    assert in_rows.results == alone.results
    assert in_rows.log == alone.log
    packed = rows_in(in_rows)
    assert len(packed) > 10
    assert max(packed) >= 16


def test_plain_steps_are_one_item_a_server() -> None:
    world = World(RowServer)
    simulations = [CountingSimulation(num_steps=4) for _ in range(NUM)]
    world.play(simulations, range(NUM))
    for server in (world.left, world.right):
        assert [len(frame) for frame in server.frames] == [NUM + 1, 1, 1, 1, NUM]
        assert server.frames[2][0].state is None or server is world.right  # type: ignore[union-attr]


def test_steps_of_a_single_simulation_are_not_sent_in_rows() -> None:
    world = play(RowServer, num=1, num_episodes=6)
    assert not rows_in(world)


class SingleServer(RowServer):
    """A server that reads rows one by one, and answers them so."""

    def _answer(self, item: AnyItem) -> AnyReply:
        if not isinstance(item, StepRows):
            return super()._answer(item)
        layout = Layout(tuple(item.agents or self.fetch_spec().agents), self.fetch_spec().agents)
        steps: list[Any] = [self._answer(step) for step in singles(layout, item)]
        return ActionRows(replies=steps)


def test_rows_may_be_answered_one_by_one() -> None:
    world = World(SingleServer)
    simulations = [CountingSimulation(num_steps=8) for _ in range(NUM)]
    world.play(simulations, range(NUM))
    assert rows_in(world) == [NUM] * 8
    assert len(world.results) == NUM
    assert world.client.num_mismatches == 0


class OfLists(CountingSimulation):
    def _observations(self) -> dict[str, Any]:
        return {"a": [float(self._t)], "b": np.array([self._t], np.complex64)}


class Uneven(CountingSimulation):
    def state(self) -> np.ndarray:
        return np.zeros(len(self.seeds) + int(self.seeds[0] == 0), np.float32)


@pytest.mark.parametrize("kind", [OfLists, Uneven])
def test_values_that_fit_no_array_are_sent_one_by_one(kind: type[CountingSimulation]) -> None:
    """Lists of numbers fit an array; states of varying length do not.

    The left server reads no state, so that it gets rows either way.
    """
    world = World(RowServer)
    world.play([kind() for _ in range(NUM)], range(NUM))
    assert rows_in(world) == [NUM] * 3
    assert not any(isinstance(item, StepRows) for frame in world.right.frames for item in frame)
    assert len(world.results) == NUM
    assert world.client.num_mismatches == 0
