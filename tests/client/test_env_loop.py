"""Simulations in lockstep: one message for each server and tick, whatever their number."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import msgspec
import pytest
from tests.client.scripted_servers import CountingSimulation, Server, TimeLimit, World, refusing

from muxrl.client import AssignmentError, MultiplexingClient, RefusedByServer, ServerLost
from muxrl.client.adapters.simulation import COMMON
from muxrl.client.env_loop import EnvLoop, EpisodeResult, SimulationFailed
from muxrl.protocol.messages import EndEpisode, StartEpisode, Step


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("num_simulations", [1, 3])
def test_one_message_a_server_and_tick(world: World, num_simulations: int) -> None:
    simulations = [CountingSimulation(num_steps=3) for _ in range(num_simulations)]
    loop = world.play(simulations, range(2 * num_simulations))
    # Two episodes of three steps each, one after the other: six ticks with steps, one with the last
    # ends.
    assert [len(frame) for frame in world.left.frames] == [
        2 * n for n in [num_simulations]
    ] + [num_simulations] * 2 + [3 * num_simulations] + [num_simulations] * 3  # fmt: skip
    assert world.log == [("send", "left"), ("send", "right"), ("receive", "left"),
                         ("receive", "right")] * 7  # fmt: skip
    assert (loop.num_episodes, loop.num_env_steps) == (2 * num_simulations, 6 * num_simulations)
    assert world.left.open == world.right.open == world.client._episodes == {}
    assert world.client.num_mismatches == 0


def test_each_episode_has_its_seed_of_which_servers_that_take_it_are_told() -> None:
    left = Server("left", "a", [], takes_seed=True)
    right = Server("right", "b", [], state_size=1)
    simulations = [CountingSimulation(num_steps=n) for n in (1, 2)]
    results: list[EpisodeResult] = []
    loop = EnvLoop(simulations, MultiplexingClient([left, right]), seeds=iter([10, 20, 30]))
    loop.run(results.append)
    assert [s.seeds for s in simulations] == [[10, 30], [20]]
    assert sorted((r.seed, r.num_steps) for r in results) == [(10, 1), (20, 2), (30, 1)]
    told = [[start.seed for start in server.of(StartEpisode)] for server in (left, right)]
    assert told == [[10, 20, 30], [None, None, None]]


def test_actions_reach_the_simulation_and_returns_its_servers(world: World) -> None:
    simulation = CountingSimulation(num_steps=4)
    world.play([simulation], [5], mode="eval")
    own = {"episode_length": {COMMON: 4.0}, "truncated": {COMMON: 0.0}}
    assert world.results == [EpisodeResult({"a": 2.0, "b": 6.0}, 4, 5, metrics=own)]
    assert sum(i.rewards.get("a", 0) for i in world.left.items[1:]) == 2.0
    assert sum(i.rewards.get("b", 0) for i in world.right.items[1:]) == 6.0
    assert simulation.actions == [{"a": f"left:a:{t}", "b": f"right:b:{t}"} for t in range(4)]
    assert [start.mode for start in world.left.of(StartEpisode)] == ["eval"]


@pytest.mark.parametrize("is_truncated", [False, True])
def test_state_and_last_observations_come_along(world: World, is_truncated: bool) -> None:
    simulation = (TimeLimit if is_truncated else CountingSimulation)(num_steps=2)
    world.play([simulation], [0])
    (end,) = world.right.of(EndEpisode)
    states = [float(i.state[0]) for i in world.right.items[1:] if i is not end]
    assert states == [0.0, 1.0]
    if is_truncated:
        assert float(end.state[0]) == 2.0
    else:  # no value is bootstrapped, and the simulation may have no state any more
        assert end.state is None
    assert (end.truncations if is_truncated else end.terminations) == {"b": True}
    assert end.is_truncated == is_truncated
    assert end.final_observations["b"].tolist() == [2.0]
    assert world.results[0].metrics["truncated"] == {COMMON: is_truncated}


@pytest.mark.parametrize("raises_at", range(7))
def test_a_simulation_that_raises(world: World, raises_at: int) -> None:
    simulations = [CountingSimulation(), CountingSimulation(num_steps=100, raises_at=raises_at)]
    with pytest.raises(
        SimulationFailed,
        match=r"^ZeroDivisionError: the physics.* \(scripted_servers.py, line \d+\), in step\(\)",
    ) as failure:
        world.play(simulations)
    assert "scripted_servers.py:" in failure.value.place
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    for server in (world.left, world.right):
        assert server.open == {}, "all are closed on every server"
        assert len(server.of(EndEpisode)) == len(world.results) == (raises_at + 1) // 3
    assert world.client._episodes == {}


def test_a_simulation_that_raises_in_reset(world: World) -> None:
    simulation = CountingSimulation(num_steps=1)

    def reset(seed: int | None) -> object:
        if seed == 1:
            raise KeyError("level 2")
        return CountingSimulation.reset(simulation, seed)

    simulation.reset = reset  # type: ignore[method-assign, assignment]
    with pytest.raises(SimulationFailed, match=r"KeyError: 'level 2' .*, in reset\(\)"):
        world.play([simulation], [0, 1])
    assert len(world.results) == len(world.left.of(EndEpisode)) == 1
    assert world.left.open == world.right.open == {}


@pytest.mark.parametrize("kind", [StartEpisode, Step, EndEpisode])
def test_a_refusal_ends_the_loop_and_closes_everything(world: World, kind: type) -> None:
    world.left.script = refusing(kind)
    with pytest.raises(RefusedByServer, match="no such luck"):
        world.play([CountingSimulation(num_steps=2) for _ in range(2)])
    assert world.left.open == world.right.open == {}


@pytest.mark.parametrize(("tick", "num_resets"), [(1, 7), (3, 6)])
def test_a_loop_begins_a_lost_episode_again_unless_it_was_over(
    world: World, tick: int, num_resets: int
) -> None:
    """A server forgets one of two episodes: in its middle, or before the server hears of its
    end."""
    simulations = [CountingSimulation(num_steps=4), CountingSimulation(num_steps=4)]
    ticks = itertools.count()

    def forget() -> bool:
        if next(ticks) == tick:
            world.left.open.popitem()
        return False

    loop = world.play(simulations, range(6), forget, on_lost="restart")
    assert sorted(r.seed or 0 for r in world.results) == list(range(6)), "each seed once"
    assert sum(len(simulation.seeds) for simulation in simulations) == num_resets
    assert loop.num_lost_episodes == 1
    assert world.left.open == world.right.open == {}
    assert world.client.num_mismatches == 0


def test_an_agent_that_nobody_serves(world: World) -> None:
    with pytest.raises(AssignmentError, match=r"\['x'\]"):
        EnvLoop([CountingSimulation("abx")], world.client)
    assert world.log == []


def test_a_state_that_cannot_be_had_is_named_with_its_switch(world: World) -> None:
    class Stateless(CountingSimulation):
        def state(self) -> Any:
            raise KeyError("ship_0")

    with pytest.raises(SimulationFailed, match=r"'ship_0'.* state\(\) .*use_global_state: false"):
        world.play([Stateless()])


class HeldRun:
    """A loop in a thread of its own, which is asked to hold after its first step."""

    def __init__(self, world: World, lengths: list[int], seeds: Any, grace_s: float) -> None:
        self.world = world
        self.simulations = [CountingSimulation(num_steps=n) for n in lengths]
        self.loop = EnvLoop(self.simulations, world.client, seeds=seeds)
        self.has_to_stop = threading.Event()
        self._grace_s = grace_s
        self._steps = itertools.count()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.loop.run(self.world.results.append, self._look)

    def _look(self) -> bool:
        if next(self._steps) == 0:
            self.loop.hold(self._grace_s)
        return self.has_to_stop.is_set()

    def end(self) -> None:
        self.loop.release()
        self.thread.join(10.0)
        assert not self.thread.is_alive()


def test_held_where_episodes_end(world: World) -> None:
    run = HeldRun(world, [1, 3], iter(range(4)), grace_s=60.0)
    assert run.loop.wait_held(10.0)
    # Both episodes are played to their ends, none has begun, and all servers have heard it.
    assert [(r.seed, r.num_steps) for r in world.results] == [(0, 1), (1, 3)]
    assert [s.seeds for s in run.simulations] == [[0], [1]]
    assert world.left.open == world.right.open == {}
    num_frames = len(world.left.frames)
    assert run.thread.is_alive()
    run.end()
    assert len(world.left.frames) > num_frames
    assert sorted((r.seed, r.num_steps) for r in world.results) == [(0, 1), (1, 3), (2, 1), (3, 3)]
    assert world.client.num_mismatches == 0


def test_servers_hear_of_all_steps_before_a_loop_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised_by: list[int] = []

    def tell() -> None:
        raised_by.append(world.right.steps[next(iter(world.right.open))])
        raise ServerLost("right is lost", server_id="right")

    monkeypatch.setattr(world.right, "tell_played", tell)
    run = HeldRun(world, [100], iter([7]), grace_s=0.0)
    assert run.loop.wait_held(10.0)
    assert len(world.left.open) == 1, "between two steps, where an episode is long"
    assert 0 < run.loop.num_env_steps < 100
    assert len(raised_by) == 1, "and a loss is met again by the next step, if it lasts"
    run.end()
    assert [(r.seed, r.num_steps) for r in world.results] == [(7, 100)], "it went on"


def test_a_hold_that_follows_a_release_at_once_ends_nothing(world: World) -> None:
    run = HeldRun(world, [2], iter(range(3)), grace_s=60.0)
    for _ in range(50):
        assert run.loop.wait_held(10.0)
        run.loop.release()
        run.loop.hold(60.0)
    run.end()
    assert [r.seed for r in world.results] == [0, 1, 2]


def test_a_loop_that_does_not_play_counts_as_held(world: World) -> None:
    loop = EnvLoop([CountingSimulation(num_steps=1)], world.client, seeds=iter([0]))
    loop.hold(60.0)
    assert loop.wait_held(0.0)
    loop.release()
    loop.run()
    assert loop.wait_held(0.0)
    assert loop.num_episodes == 1


def test_a_loop_plays_the_env_steps_it_is_allowed_and_no_more(world: World) -> None:
    simulations = [CountingSimulation(num_steps=4) for _ in range(3)]
    loop = EnvLoop(simulations, world.client, seeds=itertools.count())
    loop.limit(0)
    has_to_stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(world.results.append, has_to_stop.is_set))
    thread.start()
    for allowed in (5, 1, 7):  # it pauses at any step, also in the middle of episodes
        before = loop.num_env_steps
        loop.allow(allowed)
        loop.wait_used_up()
        assert loop.num_env_steps == before + allowed
    num_begun = sum(len(s.seeds) for s in simulations)
    loop.hold(60.0)  # open episodes are played to their ends, and none begins
    assert loop.wait_held(10.0)
    assert loop.num_env_steps == 4 * num_begun == 4 * len(world.results)
    loop.release()
    has_to_stop.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert world.client.num_mismatches == 0


def bad_at(*numbers: int, t: int = 1, kind: type = Step, is_unsound: bool = True) -> Any:
    """Returns a script that refuses a value in the episodes with these numbers, from 0."""
    begun = itertools.count()
    bad: set[str] = set()
    refuse = refusing(kind, **({"t": t} if kind is Step else {}))

    def script(item: Any) -> Any:
        if isinstance(item, StartEpisode) and next(begun) in numbers:
            bad.add(item.episode_id)
        refused = refuse(item) if item.episode_id in bad else None
        return refused and msgspec.structs.replace(refused, is_unsound=is_unsound)

    return script


@pytest.mark.parametrize(
    ("script", "num_bad", "says"),
    [
        # A wrong shape or an unknown agent is a mistake in the code, which the next episode
        # repeats.
        (bad_at(1, is_unsound=False), 0, "no such luck; to play that episode again: seed 1$"),
        (
            bad_at(*range(100)),
            20,
            r"no such luck.*; the 20 episodes before ended at a bad value, too; to .* 20$",
        ),
        (bad_at(*range(100), kind=EndEpisode), 20, "no such luck.*; the 20 episodes before .* 20$"),
    ],
)
def test_a_bad_value_in_20_episodes_in_a_row_or_a_mistake_in_the_code_ends_the_loop(
    world: World, script: Any, num_bad: int, says: str
) -> None:
    world.left.script = script
    simulations = [CountingSimulation(num_steps=2)]
    loop = EnvLoop(simulations, world.client, seeds=iter(range(100)), on_bad_value="episode")
    with pytest.raises(RefusedByServer, match=says):
        loop.run()
    assert loop.num_bad_episodes == num_bad


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("t", [0, 1])
def test_a_bad_value_ends_its_episode_alone(
    world: World, mode: Any, t: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.left.script = bad_at(1, 2, t=t)
    simulation = CountingSimulation(num_steps=3)
    loop = world.play([simulation], range(5), mode=mode, on_bad_value="episode")
    assert simulation.seeds == [0, 1, 2, 3, 4]
    assert (loop.num_bad_episodes, loop.num_lost_episodes) == (2, 0)
    kept = {r.seed: bool(r.returns) for r in world.results}
    dropped = {1: False, 2: False} if mode == "eval" else {}
    assert kept == {0: True, 3: True, 4: True, **dropped}
    assert world.right.open == {}
    texts = [one for one in caplog.messages if "ends at a bad value" in one]
    assert [one.partition(" ends")[0] for one in texts] == [
        "an episode (seed 1)",
        "an episode (seed 2)",
    ]
