"""Many copies in arrays play as one simulation alone does, also when episodes are lost, bad or
held."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted_envs import Counting
from tests.client.scripted_servers import Script, Server, World

from muxrl.client import MultiplexingClient, RefusedByServer, ServerUnavailable
from muxrl.client.adapters import adapt, adapt_vector, with_sides
from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import COMMON
from muxrl.client.adapters.vector_simulation import VectorStep
from muxrl.client.env_loop import EnvLoop, SimulationFailed
from muxrl.orchestrator.records.played import Recorded, RecordedVector
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
    return (t + ord(agent_id[0])) % 9


class NumberServer(Server):
    """A scripted server whose actions are numbers that differ by agent."""

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
    """A server that takes rows."""

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
    """All copies are reset once, with the first episode's seed."""
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
        # One message more, in which the copy that lost its episode is asked alone.
        return tick == 13

    loop = world.play(copies(6, 6), should_stop=forget, on_lost="restart")
    assert loop.num_lost_episodes == 1
    assert len(world.left.of(StartEpisode)) == 2 + 1 + 2 + 2
    assert [r.num_steps for r in world.results] == [6, 6, 6], "not the part of one"
    (rest,) = [e for e in world.right.of(EndEpisode) if e.t != 6]
    assert rest.t == 3
    assert world.client.num_mismatches == 0
    assert world.left.open == world.right.open == {}


def unsound(t: int) -> Script:
    """Returns a script that refuses one step of the episode that started first."""
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
    again = "it is NaN; to play that episode again: copy 0 of an environment with seed 7$"
    with pytest.raises(RefusedByServer, match=again):
        stopping.play(copies(3, 3), range(7, 20))
    assert stopping.left.open == stopping.right.open == {}


def test_copies_that_are_all_out_for_ever_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muxrl.client.vector_copies._MOST_IDLE", 10)
    world = World(NumberServer, script=unsound(t=1))
    with pytest.raises(SimulationFailed, match="all 1 copies had a bad value"):
        world.play(copies(999), on_bad_value="episode")


class Spoilt(Around):
    """Copies with something wrong in their steps; they raise at the third."""

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
        ({"rewards": {"x": np.zeros(2)}}, r"rewards came of \['x'\]"),
        ({"infos": {"a": {"score": np.zeros(3)}}}, "metric 'score' .*2 numbers"),
        ({}, "the physics"),
    ],
)
def test_a_wrong_part_of_a_step_is_refused_by_name_and_all_episodes_are_closed(
    spoilt: dict[str, Any], says: str
) -> None:
    world = World(RowServer)
    with pytest.raises(SimulationFailed, match=says):
        world.play(Spoilt(spoilt), metrics={"score": "last"})
    assert world.left.open == world.right.open == {}
    assert len(world.left.of(EndEpisode)) == len(world.results) == (not spoilt)


def test_a_loop_pauses_between_two_steps_when_held_or_out_of_allowed_steps() -> None:
    world = World(RowServer)
    loop = EnvLoop(copies(*[100] * 4), world.client)
    loop.limit(0)
    has_to_stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(world.results.append, has_to_stop.is_set))
    thread.start()
    for allowed, played in ((5, 8), (3, 8), (1, 12)):  # only whole steps of four copies are played
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


def test_answers_without_actions_close_the_episodes() -> None:
    class Short(RowServer):
        def _answer(self, item: AnyItem) -> AnyReply:
            reply = super()._answer(item)
            if isinstance(reply, ActionRows) and self.server_id == "right":
                short = [rows[:1] for rows in reply.actions]
                return msgspec.structs.replace(reply, actions=short)
            return reply

    world = World(Short)
    with pytest.raises(ServerUnavailable, match=r"'right' gave no valid answer .*shape"):
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


AGENTS = ["a", "b", "c"]
Ends = Mapping[str, Mapping[int, bool]]
"""By agent: the env steps in which it ends, and whether it is truncated then."""


class Lives:
    """A ParallelEnv whose agents end by a script, and observe the step and all actions in it.

    Args:
        ends: by agent, the steps in which it ends; in step `length` all agents that are left end.
        length: of an episode, in steps.
        respawn: when agents that have ended come back: "refuse", "same_id", "same_step".
    """

    possible_agents = AGENTS
    observation_spaces = {a: Box(-99, 99, (5,)) for a in AGENTS}
    action_spaces = {a: Discrete(9) for a in AGENTS}

    def __init__(self, ends: Ends, length: int, respawn: Any = "refuse") -> None:
        self.ends, self.length, self.respawn = ends, length, respawn

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents, self.done = 0, list(AGENTS), dict.fromkeys(AGENTS, 0.0)
        return self.seen(AGENTS), {a: {} for a in AGENTS}

    def seen(self, agents: list[str]) -> dict[str, Any]:
        return {
            a: np.array([AGENTS.index(a), self.t, *self.done.values()], np.float32) for a in agents
        }

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        here, is_last = self.agents, self.t == self.length
        self.done = {a: float(actions.get(a, -1)) for a in AGENTS}
        over = {a: self.ends.get(a, {}).get(self.t, True if is_last else None) for a in here}
        rewards = {a: self.t + 0.25 * AGENTS.index(a) for a in here}
        back = [a for a in AGENTS if a not in here and self.respawn == "same_id" and not is_last]
        seen, told = self.seen([*here, *back]), dict.fromkeys([*here, *back], False)
        terminations = told | {a: one is False for a, one in over.items()}
        truncations = told | {a: one is True for a, one in over.items()}
        stays = self.respawn == "same_step" and not is_last
        self.agents = [a for a in told if stays or over.get(a) is None]
        return (
            seen,
            rewards,
            terminations,
            truncations,
            {a: {"at": self.t + AGENTS.index(a)} for a in told},
        )

    def state(self) -> Any:
        return np.array([self.t], np.float32)

    state_space = Box(-99, 99, (1,))


class Batch:
    """Copies of `Lives` in arrays; the rows of agents that have ended are NaN.

    Args:
        envs: the copies.
        mode: how copies begin again, as Gymnasium's `autoreset_mode`.
        keeps_flags: whether agents that have ended stay flagged until their copy begins again.
    """

    possible_agents = AGENTS
    observation_spaces, action_spaces = Lives.observation_spaces, Lives.action_spaces
    state_space = Lives.state_space

    def __init__(
        self, envs: list[Lives], mode: str = "Disabled", *, keeps_flags: bool = True
    ) -> None:
        self.envs, self.num_envs, self.keeps_flags = envs, len(envs), keeps_flags
        self.metadata = {"autoreset_mode": mode}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for copy in np.flatnonzero(mask).tolist():
            self.envs[copy].reset()
        if options is None:
            self.seen = {a: np.full((self.num_envs, 5), np.nan, np.float32) for a in AGENTS}
        self.put(mask)
        return dict(self.seen), {}

    def put(self, mask: Any) -> None:
        self.seen = {a: rows.copy() for a, rows in self.seen.items()}
        for copy in np.flatnonzero(mask).tolist():
            for a, value in self.envs[copy].seen(AGENTS).items():
                self.seen[a][copy] = value

    def step(self, actions: Any) -> Any:
        n = self.num_envs
        rewards = {a: np.full(n, np.nan) for a in AGENTS}
        ended, cut = ({a: np.zeros(n, bool) for a in AGENTS} for _ in range(2))
        for copy, env in enumerate(self.envs):
            here = list(env.agents)
            if env.respawn == "refuse" and self.keeps_flags:
                for a in set(AGENTS) - set(here):
                    ended[a][copy] = True
            if not here:  # the episode was over
                env.reset()
                continue
            result = env.step({a: int(actions[a][copy]) for a in here})
            for into, given_ in zip((rewards, ended, cut), result[1:4], strict=True):
                for a, value in given_.items():
                    into[a][copy] = value
        self.put(np.ones(n, bool))
        at = {a: np.array([env.t + i for env in self.envs]) for i, a in enumerate(AGENTS)}
        infos: Any = {a: {"at": at[a], "_at": ~np.isnan(rewards[a])} for a in AGENTS}
        over = np.array([not env.agents for env in self.envs])
        if over.any() and self.metadata["autoreset_mode"] == "SameStep":
            infos |= {"final_obs": self.seen, "final_state": self.state()}
            self.reset(options={"reset_mask": over})
        return dict(self.seen), rewards, ended, cut, infos

    def state(self) -> Any:
        return np.stack([env.state() for env in self.envs])


SPACE = adapt(Lives({}, 1)).observation_spaces["a"]


def world_of(kind: type[NumberServer] = NumberServer) -> World:
    return World(kind, right="bc", space=SPACE)


def plain(item: dict[str, Any]) -> dict[str, Any]:
    # The end of an episode repeats these for all agents.
    for key in ("episode_id", "terminations", "truncations"):
        item.pop(key, None)
    return {key: value for key, value in item.items() if value or value == 0}


def received(world: World, place: int) -> list[Any]:
    """Returns what both servers received of one episode.

    Args:
        world: the servers.
        place: of the episode, in the order in which episodes started.
    """
    found = []
    for server in (world.left, world.right):
        episode_id = server.of(StartEpisode)[place].episode_id
        for item in server.of(object, episode_id):
            if not isinstance(item, StepRows):
                told = msgspec.to_builtins(item, enc_hook=lambda array: array.tolist())
                # A row has a reward of every agent, which is 0 for an agent that comes back.
                told["rewards"] = {a: r for a, r in told.get("rewards", {}).items() if r}
                flags = {k: told[k] for k in ("terminations", "truncations") if told.get(k)}
                found.append(plain(told) | ({} if isinstance(item, EndEpisode) else flags))
    return found


@st.composite
def episodes(draw: Any, respawn: str = "refuse") -> tuple[Ends, int]:
    length = draw(st.integers(1, 6))
    latest = length if respawn == "refuse" else length - 2
    dicts = st.dictionaries(st.integers(1, max(1, latest)), st.booleans(), max_size=2)
    ends: Any = {a: draw(dicts) if latest > 0 else {} for a in AGENTS}
    if respawn == "refuse" and all(ends.values()):  # the episode ends with the last agent's end
        length = max(min(one) for one in ends.values())
    if respawn != "refuse":  # if all agents ended at once in a copy, its episode would be over
        ends["a"] = {}
    return ends, length


@pytest.mark.parametrize("respawn", ["refuse", "same_id", "same_step"])
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([NumberServer, RowServer]),
    mode=st.sampled_from(["Disabled", "NextStep", "SameStep"]),
    keeps_flags=st.booleans(),
    data=st.data(),
)
def test_agents_end_apart_and_come_back_as_in_a_simulation_alone(
    respawn: Any, kind: type[NumberServer], mode: str, keeps_flags: bool, data: Any
) -> None:
    scripts = data.draw(st.lists(episodes(respawn), min_size=1, max_size=3))
    world, metrics = world_of(kind), {"at": "max"}
    batch = Batch([Lives(*one, respawn) for one in scripts], mode, keeps_flags=keeps_flags)
    world.play(adapt_vector(batch, respawn), should_stop=stop_after(7), metrics=metrics)
    assert world.client.num_mismatches == 0
    assert world.left.open == world.right.open == world.client._episodes == {}
    expected: list[Any] = []
    for place, script in enumerate(scripts):
        alone = world_of()
        alone.play([adapt(Lives(*script, respawn), respawn)], [0], metrics=metrics)
        assert received(world, place) == received(alone, 0)
        (mine,) = alone.results
        expected.append((mine.returns, mine.metrics))
        if respawn == "refuse":
            ends, length = script
            cut = [ends[a][min(ends[a])] if ends[a] else True for a in AGENTS]
            assert mine.metrics["truncated"] == {COMMON: any(cut)}, length
    told = [(other.returns, other.metrics) for other in world.results]
    assert all(one in told for one in expected)
    assert all(one in expected for one in told), "later episodes, too"


@settings(max_examples=40, deadline=None)
@given(scripts=st.lists(episodes(), min_size=1, max_size=3))
def test_episodes_of_copies_are_recorded_as_of_a_simulation_alone(
    scripts: list[tuple[Ends, int]],
) -> None:
    found: dict[int, Any] = {}

    def take(rows: list[Any], parameters: Any) -> None:
        found[rows[0]["seed"]] = rows

    vector = adapt_vector(Batch([Lives(*one) for one in scripts]))
    recorder = RecordedVector(vector, take, lambda seed: seed != 1)
    world_of(RowServer).play(recorder, range(100), stop_after(7))
    assert 1 not in found
    recorded = found
    for seed, script in enumerate(scripts):
        if seed == 1:
            continue
        found = {}
        alone = Recorded(adapt(Lives(*script)), take)
        world_of().play([alone], [seed])
        np.testing.assert_equal(recorded[seed], found[seed])


@settings(max_examples=60, deadline=None)
@given(scripts=st.lists(episodes(), min_size=1, max_size=3), data=st.data())
def test_sides_of_copies_swap_as_in_a_simulation_alone(
    scripts: list[tuple[Ends, int]], data: Any
) -> None:
    moves = [data.draw(st.integers(0, 2)) for _ in scripts]
    parameters = {"side": {"sides": AGENTS}}
    world = world_of(RowServer)
    vector = with_sides(
        adapt_vector(Batch([Lives(*one) for one in scripts])), parameters, is_vector=True
    )
    drawn = iter([*moves, *[0] * 100])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muxrl.client.env_loop.draw", lambda given, seed: {"side": next(drawn)})
        world.play(vector, should_stop=stop_after(7), metrics={"at": "last"})
        assert world.client.num_mismatches == 0
        expected: list[Any] = []
        for place, (script, by) in enumerate(zip(scripts, moves, strict=True)):
            alone = world_of()
            drawn = iter([by, 0])
            simulation = with_sides(adapt(Lives(*script)), parameters)
            alone.play([simulation], [0, 1], metrics={"at": "last"})
            assert received(world, place) == received(alone, 0)
            expected += [(one.returns, one.metrics) for one in alone.results]
        told = [(one.returns, one.metrics) for one in world.results]
        assert all(one in expected for one in told), "later episodes, too"
