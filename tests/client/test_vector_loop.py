"""Many copies in arrays: the servers hear what they would hear of each by itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.client.scripted_servers import (
    CountingSimulation,
    Script,
    Server,
    TimeLimit,
    World,
)

from muxrl.client import MultiplexingClient, RefusedByServer, ServerUnavailable
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
from muxrl.protocol.spaces import Box, Discrete


class NumberServer(Server):
    """A scripted server whose actions are numbers: ``t % 9``."""

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
            return msgspec.structs.replace(reply, actions=dict.fromkeys(reply.actions, reply.t % 9))
        return reply


class RowServer(NumberServer):
    """One that takes rows."""

    takes_rows = True


class CountingVector:
    """`CountingSimulation` in copies whose episodes have these lengths; truncated if told."""

    def __init__(
        self, lengths: Sequence[int], *, is_truncated: bool = False, is_next_step: bool = False
    ) -> None:
        self.num_copies = len(lengths)
        self.possible_agents = ("a", "b")
        self.observation_spaces = {a: Box((1,)) for a in "ab"}
        self.action_spaces = {a: Discrete(9) for a in "ab"}
        self.state_size = 1
        self.seeds: list[int | None] = []
        self.begun: list[tuple[int, int | None]] = []
        self.actions: list[dict[str, Any]] = []
        self._lengths = np.array(lengths)
        self._is_truncated, self._is_next_step = is_truncated, is_next_step
        self._t = np.zeros(self.num_copies, np.int64)
        self._waiting = np.zeros(self.num_copies, bool)

    def reset(self, seed: int | None = None) -> dict[str, Any]:
        self.seeds.append(seed)
        return self._seen()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self.actions.append({a: one.tolist() for a, one in actions.items()})
        self._t = np.where(self._waiting, 0, self._t + 1)
        over = (self._t == self._lengths) & ~self._waiting
        seen, states = self._seen(), self.state()
        finals = {int(i): {a: seen[a][i] for a in "ab"} for i in np.flatnonzero(over)}
        if self._is_next_step:
            self._waiting = over
        else:
            self._t = np.where(over, 0, self._t)
        both = np.stack([over, over], 1)
        return VectorStep(
            self._seen(),
            {"a": np.full(self.num_copies, 0.5), "b": np.full(self.num_copies, 1.5)},
            self.present,
            both & (not self._is_truncated),
            both & self._is_truncated,
            over,
            finals,
            {"a": {"score": self._t.astype(float)}},
            {copy: states[copy] for copy in finals},
        )

    @property
    def present(self) -> Any:
        return ~np.stack([self._waiting] * 2, 1)

    def state(self) -> Any:
        return self._t[:, None].astype(np.float32)

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        self.begun.append((copy, seed))

    def leave_out_state(self) -> None:
        self.state_size = None

    def close(self) -> None:
        """Nothing to free."""

    def _seen(self) -> dict[str, Any]:
        return {a: self._t[:, None].astype(np.float32) for a in "ab"}


def received(server: Server, place: int) -> list[Any]:
    """Returns what it heard of the episode that began at that place, with no id and flags."""
    episode_id = server.of(StartEpisode)[place].episode_id
    return [
        plain(msgspec.to_builtins(item, enc_hook=lambda array: array.tolist()))
        for item in server.of(object, episode_id)
        if not isinstance(item, StepRows)
    ]


def plain(item: dict[str, Any]) -> dict[str, Any]:
    for key in ("episode_id", "terminations", "truncations"):  # an end says it of all agents
        item.pop(key, None)
    return {key: value for key, value in item.items() if value or value == 0}


def stop_after(num_steps: int) -> Any:
    calls = itertools.count(1)
    return lambda: next(calls) > num_steps


@pytest.mark.parametrize("kind", [NumberServer, RowServer])
@pytest.mark.parametrize("is_truncated", [False, True])
@pytest.mark.parametrize("is_next_step", [False, True])
def test_servers_hear_of_a_copy_what_they_hear_of_a_simulation(
    kind: type[NumberServer], is_truncated: bool, is_next_step: bool
) -> None:
    lengths = [3, 2, 5]
    world = World(kind)
    vector = CountingVector(lengths, is_truncated=is_truncated, is_next_step=is_next_step)
    world.play(vector, should_stop=stop_after(12))
    assert world.left.open == world.right.open == world.client._episodes == {}
    assert world.client.num_mismatches == 0
    assert {r.num_steps for r in world.results} == set(lengths)
    for result in world.results:
        num = result.num_steps
        assert result.returns == {"a": 0.5 * num, "b": 1.5 * num}
    for place, length in enumerate(lengths):
        alone = World(NumberServer)
        alone.play([(TimeLimit if is_truncated else CountingSimulation)(num_steps=length)], [0])
        assert received(world.left, place) == received(alone.left, 0)
        assert received(world.right, place) == received(alone.right, 0)


def test_one_message_a_server_and_step_and_one_item_for_all_copies() -> None:
    world = World(RowServer)
    world.play(CountingVector([3, 3, 3]), should_stop=stop_after(3))
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


def test_actions_come_back_to_their_copies() -> None:
    world = World(RowServer)
    vector = CountingVector([2, 4])
    world.play(vector, should_stop=stop_after(4))
    assert [one["a"] for one in vector.actions] == [[0, 0], [1, 1], [0, 2], [1, 3]]
    assert vector.seeds == [None]


def test_servers_that_take_it_are_told_an_episode_s_seed() -> None:
    """That of the first is what all copies are reset with."""
    server = NumberServer("left", "ab", [], takes_seed=True)
    vector = CountingVector([2, 4])
    loop = EnvLoop(vector, MultiplexingClient([server]), seeds=iter([10, 20, 30, 40]))
    loop.run(should_stop=stop_after(5))
    assert vector.seeds == [10]
    assert [start.seed for start in server.of(StartEpisode)] == [10, 20, 30, 40]
    assert vector.begun == [(0, 10), (1, 20), (0, 30), (0, 40)]


def test_a_copy_that_waits_keeps_its_last_action_and_counts_no_step() -> None:
    world = World(RowServer)
    vector = CountingVector([1, 9], is_next_step=True)
    loop = world.play(vector, should_stop=stop_after(4))
    assert [one["a"][1] for one in vector.actions] == [0, 1, 2, 3]
    assert loop.num_env_steps == 4 + 2
    assert [r.num_steps for r in world.results] == [1, 1]


def test_metrics_are_those_of_the_episode() -> None:
    world = World(NumberServer)
    vector = CountingVector([3, 4], is_next_step=True)
    world.play(vector, should_stop=stop_after(4), metrics={"score": "max"})
    assert [r.metrics["score"] for r in world.results] == [{"a": 3.0}, {"a": 4.0}]
    ends = world.left.of(EndEpisode)
    assert [end.metrics for end in ends] == [{"score": {"a": 3.0}}, {"score": {"a": 4.0}}]


@pytest.mark.parametrize("kind", [NumberServer, RowServer])
def test_a_lost_episode_begins_again_where_its_copy_stands(kind: type[NumberServer]) -> None:
    world = World(kind)
    ticks = itertools.count()

    def forget() -> bool:
        tick = next(ticks)
        if tick == 2:
            world.left.open.popitem()
        return tick == 13  # asked once more, as it is asked alone

    loop = world.play(CountingVector([6, 6]), should_stop=forget, on_lost="restart")
    assert loop.num_lost_episodes == 1
    lengths = [start.episode_id for start in world.left.of(StartEpisode)]
    assert len(lengths) == 2 + 1 + 2 + 2
    assert [r.num_steps for r in world.results] == [6, 6, 6], "not the part of one"
    (rest,) = [e for e in world.right.of(EndEpisode) if e.t not in (6,)]
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


@pytest.mark.parametrize("kind", [NumberServer, RowServer])
def test_a_copy_with_a_bad_value_is_out_until_its_episode_is_over(
    kind: type[NumberServer],
) -> None:
    world = World(kind, unsound(t=1))
    vector = CountingVector([3, 3])
    loop = world.play(vector, should_stop=stop_after(6), on_bad_value="episode")
    assert loop.num_bad_episodes == 1
    assert [r.num_steps for r in world.results] == [3, 3, 3]
    assert loop.num_env_steps == 12 - 2
    assert world.client.num_mismatches == 0
    stopping = World(kind, unsound(t=1))
    with pytest.raises(RefusedByServer, match="it is NaN"):
        stopping.play(CountingVector([3, 3]))
    assert stopping.left.open == stopping.right.open == {}


def test_copies_that_are_all_out_for_ever_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muxrl.client.vector_copies._MOST_IDLE", 10)
    world = World(NumberServer, script=unsound(t=1))
    with pytest.raises(SimulationFailed, match="all 1 copies had a bad value"):
        world.play(CountingVector([999]), on_bad_value="episode")


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"observations": {"a": np.zeros((2, 1), np.float32)}}, "agent 'b' .*float32, shape"),
        ({"observations": {a: np.zeros((2, 3), np.float32) for a in "ab"}}, r"got float32 of .*3"),
        ({"observations": {a: np.zeros((2, 1), np.int64) for a in "ab"}}, "got int64"),
        ({"rewards": {"a": np.zeros(3)}}, r"rewards of agent 'a' .*shape \(2,\), got .*\(3,\)"),
        ({"rewards": {"x": np.zeros(2)}}, r"rewards of \['x'\]"),
        ({"infos": {"a": {"score": np.zeros(3)}}}, "metric 'score' .*2 numbers"),
    ],
)
def test_arrays_of_another_shape_are_refused_by_name(spoilt: dict[str, Any], says: str) -> None:
    class Spoilt(CountingVector):
        def step(self, actions: Mapping[str, Any]) -> VectorStep:
            return super().step(actions)._replace(**spoilt)

    world = World(RowServer)
    with pytest.raises(SimulationFailed, match=says):
        world.play(Spoilt([5, 5]), metrics={"score": "last"})
    assert world.left.open == world.right.open == {}


def test_a_simulation_that_raises_closes_what_is_open() -> None:
    class Raises(CountingVector):
        def step(self, actions: Mapping[str, Any]) -> VectorStep:
            if len(self.actions) == 3:
                raise ZeroDivisionError("the physics")
            return super().step(actions)

    world = World(RowServer)
    with pytest.raises(SimulationFailed, match="the physics"):
        world.play(Raises([2, 5]))
    assert world.left.open == world.right.open == {}
    assert len(world.left.of(EndEpisode)) == len(world.results) == 1


def test_it_pauses_between_two_steps_when_held_or_used_up() -> None:
    world = World(RowServer)
    loop = EnvLoop(CountingVector([100] * 4), world.client)
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
        world.play(CountingVector([5, 5]))
    assert world.left.open == {}


@pytest.mark.parametrize("kind", [NumberServer, RowServer])
def test_a_server_without_agents_here_is_kept_awake_and_told_of_no_step(
    kind: type[NumberServer],
) -> None:
    world = World(kind)
    idle = kind("idle", "z", world.log)
    idle._spec = msgspec.structs.replace(idle._spec, episode_timeout_s=1e-6)
    client = MultiplexingClient([world.left, world.right, idle])
    EnvLoop(CountingVector([3, 4]), client).run(world.results.append, should_stop=stop_after(13))
    assert len(world.results) == 7
    assert {item.t for item in idle.of(EndEpisode)} == {0}
    assert not idle.of(Step)
    assert len(idle.of(StartEpisode)) > 2 * len({i.episode_id for i in idle.of(StartEpisode)})
    assert client.num_mismatches == 0
