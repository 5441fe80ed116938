"""Many copies in arrays: what is sent of them, and where they are lost, bad, or held."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.client.scripted_envs import Counting
from tests.client.scripted_servers import Script, Server, World

from muxrl.client import MultiplexingClient, RefusedByServer, ServerUnavailable
from muxrl.client.adapters import adapt_vector
from muxrl.client.adapters.around import Around
from muxrl.client.adapters.vector_simulation import VectorStep
from muxrl.client.env_loop import EnvLoop, SimulationFailed
from muxrl.protocol.messages import (
    AbortEpisode,
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    EndEpisode,
    Refused,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.rows import Layout, singles


def number(agent_id: str, t: int) -> int:
    return (t + ord(agent_id)) % 9


class NumberServer(Server):
    """A scripted server whose actions are numbers, of each agent another one."""

    def _answer(self, item: AnyItem) -> AnyReply:
        if isinstance(item, StepRows):
            spec = self.fetch_spec()
            layout = Layout(tuple(item.agents) or tuple(spec.agents), spec.agents)
            replies: Sequence[Any] = [self._answer(step) for step in singles(layout, item)]
            if any(isinstance(one, Refused) for one in replies):
                return ActionRows(replies=list(replies))
            rows = [[one.actions[a] for a in layout.agents] for one in replies]
            return ActionRows(actions=[np.array(rows)])
        reply = super()._answer(item)
        if isinstance(reply, Actions):
            numbers = {agent_id: number(agent_id, reply.t) for agent_id in reply.actions}
            return msgspec.structs.replace(reply, actions=numbers)
        return reply


class RowServer(NumberServer):
    """One that takes rows."""

    takes_rows = True


KINDS = pytest.mark.parametrize("kind", [NumberServer, RowServer])


def copies(*lengths: int, **how: Any) -> Any:
    return adapt_vector(Counting(*lengths, **how))


def stop_after(num_steps: int) -> Any:
    calls = itertools.count(1)
    return lambda: next(calls) > num_steps


def test_one_message_a_server_and_step_and_one_item_for_all_copies() -> None:
    world = World(RowServer)
    world.play(copies(3, 3, 3), should_stop=stop_after(3))
    kinds = [[type(item) for item in frame] for frame in world.left.frames]
    assert kinds == [
        [StartEpisode] * 3 + [StepRows],
        [StepRows],
        [StepRows],
        [EndEpisode, EndEpisode, EndEpisode, StartEpisode, StartEpisode, StartEpisode, StepRows],
        [AbortEpisode] * 3,
    ]
    assert world.log[:4] == [
        ("send", "left"), ("send", "right"), ("receive", "left"), ("receive", "right")
    ]  # fmt: skip


def test_servers_that_take_it_are_told_an_episode_s_seed() -> None:
    """That of the first is what all copies are reset with."""
    server, batch = NumberServer("left", "ab", [], takes_seed=True), Counting(2, 4)
    client = MultiplexingClient([server])
    EnvLoop(adapt_vector(batch), client, seeds=iter([10, 20, 30, 40])).run(
        should_stop=stop_after(5)
    )
    assert [seed for seed in batch.seeds if seed is not None] == [10]
    assert [start.seed for start in server.of(StartEpisode)] == [10, 20, 30, 40]


def test_a_copy_that_waits_counts_no_step() -> None:
    world = World(RowServer)
    loop = world.play(copies(1, 9, mode="NextStep"), should_stop=stop_after(4))
    assert loop.num_env_steps == 4 + 2
    assert [r.num_steps for r in world.results] == [1, 1]


@KINDS
def test_a_lost_episode_begins_again_where_its_copy_stands(kind: type[NumberServer]) -> None:
    world = World(kind)
    ticks = itertools.count()

    def forget() -> bool:
        tick = next(ticks)
        if tick == 2:
            world.left.open.popitem()
        return tick == 13  # asked once more, as it is asked alone

    loop = world.play(copies(6, 6), should_stop=forget, on_lost="restart")
    assert loop.num_lost_episodes == 1
    assert len(world.left.of(StartEpisode)) == 2 + 1 + 2 + 2
    assert [r.num_steps for r in world.results] == [6, 6, 6], "not the part of one"
    (rest,) = [e for e in world.right.of(EndEpisode) if e.t != 6]
    assert rest.t == 3
    assert world.client.num_mismatches == 0
    assert world.left.open == world.right.open == {}


def unsound(t: int) -> Script:
    """Refuses one step of the episode that started first."""
    first: list[str] = []

    def script(item: AnyItem) -> AnyReply | None:
        first.append(item.episode_id)
        if isinstance(item, Step) and item.episode_id == first[0] and item.t == t:
            return Refused(item.episode_id, 422, "it is NaN", "a", is_unsound=True)
        return None

    return script


@KINDS
def test_a_copy_with_a_bad_value_is_out_until_its_episode_is_over(
    kind: type[NumberServer],
) -> None:
    world = World(kind, unsound(t=1))
    loop = world.play(copies(3, 3), should_stop=stop_after(6), on_bad_value="episode")
    assert loop.num_bad_episodes == 1
    assert [r.num_steps for r in world.results] == [3, 3, 3]
    assert loop.num_env_steps == 12 - 2
    assert world.client.num_mismatches == 0
    stopping = World(kind, unsound(t=1))
    with pytest.raises(RefusedByServer, match="it is NaN"):
        stopping.play(copies(3, 3))
    assert stopping.left.open == stopping.right.open == {}


def test_copies_that_are_all_out_for_ever_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muxrl.client.vector_copies._MOST_IDLE", 10)
    world = World(NumberServer, script=unsound(t=1))
    with pytest.raises(SimulationFailed, match="all 1 copies had a bad value"):
        world.play(copies(999), on_bad_value="episode")


class Spoilt(Around):
    """Copies of whose steps something is wrong; at the third they raise."""

    def __init__(self, spoilt: dict[str, Any]) -> None:
        super().__init__(copies(2, 5))
        self.spoilt, self.left = spoilt, 3

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self.left -= 1
        if not self.left:
            raise ZeroDivisionError("the physics")
        step: VectorStep = self._inside.step(actions)
        return step._replace(**self.spoilt)


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"observations": {"a": np.zeros((2, 1), np.float32)}}, "agent 'b' .*float32, shape"),
        ({"observations": {a: np.zeros((2, 3), np.float32) for a in "ab"}}, r"got float32 of .*3"),
        ({"observations": {a: np.zeros((2, 1), np.int64) for a in "ab"}}, "got int64"),
        ({"rewards": {"a": np.zeros(3)}}, r"rewards of agent 'a' .*shape \(2,\), got .*\(3,\)"),
        ({"rewards": {"x": np.zeros(2)}}, r"rewards of \['x'\]"),
        ({"infos": {"a": {"score": np.zeros(3)}}}, "metric 'score' .*2 numbers"),
        ({}, "the physics"),
    ],
)
def test_what_is_wrong_is_named_and_closes_what_is_open(spoilt: dict[str, Any], says: str) -> None:
    world = World(RowServer)
    with pytest.raises(SimulationFailed, match=says):
        world.play(Spoilt(spoilt), metrics={"score": "last"})
    assert world.left.open == world.right.open == {}
    assert len(world.left.of(EndEpisode)) == len(world.results) == (not spoilt)


def test_it_pauses_between_two_steps_when_held_or_used_up() -> None:
    world = World(RowServer)
    loop = EnvLoop(copies(*[100] * 4), world.client)
    loop.limit(0)
    has_to_stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(world.results.append, has_to_stop.is_set))
    thread.start()
    for allowed, played in ((5, 8), (3, 8), (1, 12)):  # whole steps of four copies
        loop.allow(allowed)
        loop.wait_used_up()
        assert loop.num_env_steps == played
    loop.hold(0.0)
    assert loop.wait_held(10.0)
    assert len(world.left.open) == 4
    has_to_stop.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert world.left.open == {}


def test_answers_that_are_none_close_the_episodes() -> None:
    class Short(RowServer):
        def _answer(self, item: AnyItem) -> AnyReply:
            reply = super()._answer(item)
            if isinstance(reply, ActionRows) and self.server_id == "right":
                short = [rows[:1] for rows in reply.actions]
                return msgspec.structs.replace(reply, actions=short)
            return reply

    world = World(Short)
    with pytest.raises(ServerUnavailable, match=r"'right' answered steps .*shape"):
        world.play(copies(5, 5))
    assert world.left.open == {}


@KINDS
def test_a_server_without_agents_here_is_kept_awake_and_told_of_no_step(
    kind: type[NumberServer],
) -> None:
    world = World(kind)
    idle = kind("idle", "z", world.log)
    idle._spec = msgspec.structs.replace(idle._spec, episode_timeout_s=1e-6)
    client = MultiplexingClient([world.left, world.right, idle])
    EnvLoop(copies(3, 4), client).run(world.results.append, should_stop=stop_after(13))
    assert len(world.results) == 7
    assert {item.t for item in idle.of(EndEpisode)} == {0}
    assert not idle.of(Step)
    assert len(idle.of(StartEpisode)) > 2 * len({i.episode_id for i in idle.of(StartEpisode)})
    assert client.num_mismatches == 0
