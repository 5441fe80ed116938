"""Transports around a server's: with a shadow, with a stand-in while it is lost, with random or
untrained agents."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.client.scripted_servers import ALL, CountingSimulation, Log, Server, World, refusing
from tests.client.test_vector_loop import (
    SPACE,
    Batch,
    Lives,
    NumberServer,
    RowServer,
    episodes,
    number,
    stop_after,
)

from muxrl.client import EpisodeAborted, EpisodeLost, MultiplexingClient, ServerLost, stand_in
from muxrl.client.adapters import adapt, adapt_vector
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.network_transport import NetworkTransport
from muxrl.client.random_policy import RandomTransport
from muxrl.client.replacing import RandomAgents, UntrainedAgents
from muxrl.client.shadowed import Shadowed
from muxrl.client.stand_in import StandIn
from muxrl.protocol.messages import (
    AbortEpisode,
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    EndEpisode,
    Refused,
    ServerSpec,
    StartEpisode,
    Step,
    StepRows,
)


class Losable(RowServer):
    def send(self, items: Sequence[AnyItem]) -> None:
        if self.is_lost:
            raise ServerLost("shadow is gone", server_id="shadow")
        super().send(items)


class Shadows(World):
    """Two servers, of which the right one has a shadow: a server that learns from its actions."""

    def __init__(
        self,
        kind: type[NumberServer] = NumberServer,
        sizes: tuple[int | None, int | None] = (1, 1),
        **how: Any,
    ) -> None:
        self.log: Log = []
        self.left = kind("left", "a", self.log, space=SPACE)
        self.right = kind("right", "bc", self.log, space=SPACE, state_size=sizes[0])
        self.shadow = Losable("shadow", "bc", self.log, space=SPACE, state_size=sizes[1], **how)
        self.shadowed = Shadowed(self.right, self.shadow)
        self.client = MultiplexingClient([self.left, self.shadowed])
        self.results = []

    def assert_it_is_sent_the_same(self) -> None:
        assert plain(self.shadow.items) == [
            {**one, "logged_actions": {a: number(a, one["t"]) for a in seen}}
            if (seen := one.get("observations"))
            else one
            for one in plain(self.right.items)
        ]


def plain(items: list[Any]) -> list[Any]:
    return [msgspec.to_builtins(item, enc_hook=lambda array: array.tolist()) for item in items]


class Both(CountingSimulation):
    def __init__(self, **how: Any) -> None:
        super().__init__("abc", **how)

    def _observations(self) -> dict[str, Any]:
        return {a: [float(self._t)] * 5 for a in "abc"}


@settings(max_examples=40, deadline=None)
@given(
    respawn=st.sampled_from(["refuse", "same_id", "same_step"]),
    kind=st.sampled_from([NumberServer, RowServer]),
    is_vector=st.booleans(),
    data=st.data(),
)
def test_a_shadow_is_sent_every_step_with_its_server_s_actions(
    respawn: Any, kind: type[NumberServer], is_vector: bool, data: Any
) -> None:
    scripts = data.draw(st.lists(episodes(respawn), min_size=1, max_size=3))
    world, envs = Shadows(kind), [Lives(*one, respawn) for one in scripts]
    copies: Any = [adapt(env, respawn) for env in envs]
    if is_vector:
        copies = adapt_vector(Batch(envs), respawn)
    world.play(copies, should_stop=stop_after(9))
    world.assert_it_is_sent_the_same()
    assert world.shadow.open == world.right.open == {}
    assert world.shadow.of(Step)


def test_a_shadow_is_sent_to_after_its_server_and_answers_during_the_next_step() -> None:
    world = Shadows()
    world.play([Both(num_steps=2)], [0])
    calls = [(call, who) for call, who in world.log if who != "left"]
    turn = [("send", "right"), ("receive", "right"), ("receive", "shadow"), ("send", "shadow")]
    assert calls[:3] == [turn[0], turn[1], turn[3]]
    assert calls[3:7] == turn
    # A server that saves waits until its shadow has heard of every step.
    world.shadowed.tell_played()
    assert world.log[-1] == ("receive", "shadow")


@pytest.mark.parametrize("kind", [NumberServer, RowServer])
@pytest.mark.parametrize("sizes", [(1, None), (None, 1)])
def test_the_global_state_is_sent_to_the_servers_that_read_it(
    sizes: tuple[int | None, int | None], kind: type[NumberServer]
) -> None:
    world = Shadows(kind, sizes)
    world.play([Both(), Both()], [0, 1])
    for server, size in zip((world.right, world.shadow), sizes, strict=True):
        steps = [*server.of(Step), *server.of(StepRows)]
        assert steps
        assert all((step.state is None) == (size is None) for step in steps)


class Giving(NumberServer):
    """A server that gives log-probabilities: -3 for "c"; for "b" -100 first, then 1e-9.

    The last is above 0, as a sum in float32 may be; the first is too small to learn from.
    """

    def fetch_spec(self) -> ServerSpec:
        return replace(super().fetch_spec(), gives_log_probs=True)

    def _answer(self, item: AnyItem) -> AnyReply:
        reply = super()._answer(item)
        if isinstance(reply, Actions):
            return replace(reply, log_probs={a: self.log_prob(a, reply.t) for a in reply.actions})
        if isinstance(item, StepRows) and isinstance(reply, ActionRows):
            agents = self.fetch_spec().agents
            rows = [[self.log_prob(a, t) for a in agents] for t in item.t]
            return replace(reply, log_probs=np.array(rows))
        return reply

    @staticmethod
    def log_prob(agent_id: str, t: int) -> float:
        return -3.0 if agent_id == "c" else 1e-9 if t else -100.0


class GivingRows(Giving):
    takes_rows = True


@pytest.mark.parametrize("kind", [Giving, GivingRows])
def test_a_shadow_is_sent_the_log_probabilities_that_its_server_gives(kind: type[Giving]) -> None:
    world = Shadows(kind)
    world.play([Both(num_steps=3), Both(num_steps=3)], range(4))
    assert all(one.wants_log_probs for one in world.right.of(StartEpisode))
    assert not any(one.wants_log_probs for one in world.shadow.of(StartEpisode))
    steps = world.shadow.of(Step)
    assert len(steps) == 4 * 3
    assert [one.logged_log_probs for one in steps] == [
        {"b": 0.0, "c": -3.0} if one.t else {"c": -3.0} for one in steps
    ]
    world.play([Both()], [0], mode="eval")
    assert not world.right.of(StartEpisode)[-1].wants_log_probs


def test_a_shadow_is_sent_no_episode_of_an_evaluation() -> None:
    world = Shadows()
    world.play([Both()], [0], mode="eval")
    assert world.shadow.items == []
    assert world.right.of(EndEpisode)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("kind", [NumberServer, RowServer])
def test_a_step_that_a_shadow_refuses_ends_the_episode_on_all_servers(
    kind: type[NumberServer], is_whole: bool
) -> None:
    """The shadow refuses one step, or a whole frame with the steps of both episodes."""
    world = Shadows(kind, script=refusing(Step, t=1) if not is_whole else lambda item: None)

    def receive(patience_s: float | None = None) -> list[AnyReply]:
        replies = Losable.receive(world.shadow, patience_s)
        has_next = any(np.any(getattr(item, "t", 0) == 1) for item in world.shadow.frames[-1])
        return [Refused("", 413, "no such luck")] if is_whole and has_next else replies

    world.shadow.receive = receive  # type: ignore[method-assign]
    with pytest.raises(EpisodeAborted, match="no such luck"):
        world.play([Both(num_steps=5), Both(num_steps=5)], range(9))
    for server in (world.left, world.right, world.shadow):
        assert len(server.of(AbortEpisode)) == 2, server.server_id
        assert server.open == {}
    assert {item.t for item in world.shadow.of(Step)} == {0, 1}


def test_an_end_that_a_shadow_refuses_is_forgotten() -> None:
    world = Shadows(script=refusing(EndEpisode))
    world.play([Both()], range(3))
    world.shadowed.tell_played()
    assert len(world.shadow.of(EndEpisode)) == len(world.results) == 3
    assert world.shadowed._refused == {}


def test_an_episode_begins_again_when_a_shadow_is_lost() -> None:
    world = Shadows()

    ticks = itertools.count()

    def lose() -> bool:
        world.shadow.is_lost = next(ticks) == 1
        return False

    loop = world.play([Both()], range(3), lose, on_lost="restart")
    assert loop.num_lost_episodes == 1
    assert [result.seed for result in world.results] == [0, 1, 2]
    assert len(world.shadow.of(EndEpisode)) == len(world.left.of(EndEpisode)) == 3
    again = {item.episode_id for item in world.shadow.of(StartEpisode)}
    assert len(again) == 4, "the one that was cut short there, too"
    assert world.shadow.open == {}
    assert world.client.num_mismatches == 0


def test_a_shadow_closes_with_its_server() -> None:
    world = Shadows()
    world.client.close()
    assert world.right.is_closed
    assert world.shadow.is_closed


class Away(Server):
    """A scripted server that can be lost, with the methods of a `NetworkTransport`."""

    def fetch_spec(self, patience_s: float = 0.0) -> ServerSpec:
        return super().fetch_spec()

    def is_there(self) -> bool:
        return not self.is_lost

    def send(self, items: Iterable[AnyItem]) -> None:
        # A real transport sends again what was lost when its answer is awaited.
        if not self.is_lost:
            super().send(list(items))

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        if self.is_lost:
            raise ServerLost(f"{self.server_id} is lost", server_id=self.server_id)
        return super().receive(patience_s)


class Beside(World):
    """Two servers; while the right one is lost, its agents act at random."""

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
    """When the lost server returns, its new episodes run beside long ones that still act at
    random."""
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
    assert "was lost" in str(gone.value)
    third = world.client.start_episode("third")
    assert world.client.get_action(third, {"b": [0.0]})["b"] in range(9)
    world.client.end_episode(third)
    assert world.left.open == {}


def play(client: MultiplexingClient, num_steps: int) -> None:
    episode_id = client.start_episode("e", training_enabled=False)
    for _ in range(num_steps):
        client.get_action(episode_id, ALL)
    client.end_episode(episode_id)
    assert client.num_mismatches == 0


def test_the_server_is_told_the_random_actions_of_one_side_only(left: Server, log: Log) -> None:
    right = Server("right", "cd", log)
    everybody = {**ALL, "d": [4.0]}
    drawn = []
    for seed in (1, 1, 2):
        right.items.clear()
        client = MultiplexingClient([left, RandomAgents(right, ["d"], seed)])
        episode_id = client.start_episode(training_enabled=False)
        for _ in range(200):
            client.get_action(episode_id, everybody)
        client.end_episode(episode_id)
        steps = right.of(Step)
        assert all(step.logged_actions.keys() == {"d"} for step in steps)
        drawn.append([int(step.logged_actions["d"]) for step in steps])
    assert drawn[0] == drawn[1] != drawn[2]
    counts = np.bincount(drawn[0], minlength=9)
    assert len(counts) == 9  # the agent acts in Discrete(9)
    assert counts.min() > 0
    assert not any(step.logged_actions for step in left.of(Step))


def test_random_actions_are_not_what_an_environment_draws_with_their_seed(log: Log) -> None:
    """Evaluations seed the game and the random agents alike, but the two must draw independently.

    Otherwise a game whose solution is a drawn number would be solved by chance.
    """
    right = Server("right", "d", log)
    client = MultiplexingClient([RandomAgents(right, ["d"], 7)])
    transport = RandomTransport(Server("right", "d", log).fetch_spec(), 7)
    alone = MultiplexingClient([transport])
    for one in (client, alone):
        one.start_episode("e", training_enabled=False)
    acted = [int(alone.get_action("e", {"d": [4.0]})["d"]) for _ in range(300)]
    for _ in range(300):
        client.get_action("e", {"d": [4.0]})
    assert set(acted) == set(range(9))
    hidden = np.random.default_rng(7).integers(9, size=300)
    for drawn in (acted, [int(step.logged_actions["d"]) for step in right.of(Step)]):
        assert sum(drawn == hidden) < 70  # 33 are expected by chance


def test_a_step_without_the_random_side_has_no_logged_actions(left: Server, right: Server) -> None:
    client = MultiplexingClient([RandomAgents(left, ["b"]), right])
    episode_id = client.start_episode()
    client.get_action(episode_id, {"a": [1.0], "c": [3.0]})
    client.end_episode(episode_id)
    assert left.of(Step)[0].logged_actions == {}


def test_untrained_agents_are_named_as_an_episode_starts(left: Server, right: Server) -> None:
    play(MultiplexingClient([UntrainedAgents(left), right]), 2)
    assert left.of(StartEpisode) == [StartEpisode("e", "eval", None, ["a", "b"])]
    assert right.of(StartEpisode) == [StartEpisode("e", "eval")]
    left.items.clear()
    play(MultiplexingClient([UntrainedAgents(left, ["b"]), right]), 2)
    assert left.of(StartEpisode)[0].untrained == ["b"]
    assert not any(step.logged_actions for step in left.of(Step))
