"""Random actions in place of a lost server, for whole episodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import cast

import pytest
from tests.client.scripted_servers import CountingSimulation, Server, World

from muxrl.client import EpisodeLost, MultiplexingClient, ServerLost, stand_in
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.network_transport import NetworkTransport
from muxrl.client.stand_in import StandIn
from muxrl.protocol.messages import AnyItem, AnyReply, ServerSpec


class Away(Server):
    """A scripted server that can be lost, as a `NetworkTransport` sees it."""

    def fetch_spec(self, patience_s: float = 0.0) -> ServerSpec:
        return super().fetch_spec()

    def is_there(self) -> bool:
        return not self.is_lost

    def send(self, items: Iterable[AnyItem]) -> None:
        if not self.is_lost:  # what breaks is tried again when the answer is awaited
            super().send(list(items))

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        if self.is_lost:
            raise ServerLost(f"{self.server_id} is lost", server_id=self.server_id)
        return super().receive(patience_s)


class Beside(World):
    """Of two servers the right one may be lost."""

    def __init__(self) -> None:
        super().__init__(Away)
        self.stand_in = StandIn(cast(NetworkTransport, self.right), seed=0)
        self.client = MultiplexingClient([self.left, self.stand_in])
        self.random_seeds: list[int | None] = []

    def take(self, result: EpisodeResult) -> None:
        self.results.append(result)
        if self.stand_in.plays(result.episode_id):
            self.random_seeds.append(result.seed)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Beside:
    monkeypatch.setattr(stand_in, "_LOOK_EVERY_S", 0.005)
    return Beside()


def test_several_episodes_in_one_message_may_be_of_both_kinds(world: Beside) -> None:
    """Long and short episodes: some still run at random when the server has new ones again."""
    ticks = itertools.count()

    def lose_and_return() -> bool:
        tick = next(ticks)
        if tick in (2, 6):
            world.right.is_lost = tick == 2
            time.sleep(0.1)
        return tick > 40

    simulations = [CountingSimulation(num_steps=n) for n in (2, 30)]
    loop = EnvLoop(simulations, world.client, on_lost="restart")
    loop.run(world.take, lose_and_return)
    world.client.close()
    both = [f for f in world.left.frames if len(f) > 1]
    alone = [f for f in world.right.frames if len(f) == 1]
    assert both
    assert alone
    assert world.client.num_mismatches == 0
    assert world.random_seeds
    assert world.left.open == world.right.open == {}


def test_an_episode_that_was_open_on_the_lost_server_is_gone(world: Beside) -> None:
    first = world.client.start_episode("first")
    second = world.client.start_episode("second")
    world.right.is_lost = True
    with pytest.raises(ServerLost):
        world.client.get_action(first, {"a": [0.0], "b": [0.0]})
    with pytest.raises(EpisodeLost) as gone:
        world.client.get_action(second, {"a": [0.0], "b": [0.0]})
    assert "its server is lost" in str(gone.value)
    third = world.client.start_episode("third")
    assert world.client.get_action(third, {"b": [0.0]})["b"] in range(9)
    world.client.end_episode(third)
    assert world.left.open == {}
