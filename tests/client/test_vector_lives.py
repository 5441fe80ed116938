"""Copies in arrays whose agents end apart, come back, swap sides and are recorded, as one alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted_servers import World
from tests.client.test_vector_loop import NumberServer, RowServer, stop_after

from muxrl.client.adapters import adapt, adapt_vector, with_sides
from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.played import Recorded, RecordedVector
from muxrl.protocol.messages import EndEpisode, StartEpisode, StepRows

AGENTS = ["a", "b", "c"]
Ends = Mapping[str, Mapping[int, bool]]
"""By agent: the env steps in which it ends, and whether it is truncated then."""


class Lives:
    """A ParallelEnv of scripted ends; an agent observes the step, and what all have done in it.

    Args:
        ends: of its agents; in step `length` all that are there are truncated, if not terminated.
        respawn: when agents are there again: "refuse", "same_id", "same_step".
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
    """Some of them in arrays; rows of those who are gone are NaN.

    Args:
        envs: the copies.
        mode: how they begin again.
        keeps_flags: whether those who have ended stay so until their copy has begun again.
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
            if not here:  # it was over
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
    for key in ("episode_id", "terminations", "truncations"):  # an end says it of all agents
        item.pop(key, None)
    return {key: value for key, value in item.items() if value or value == 0}


def received(world: World, place: int) -> list[Any]:
    """What servers heard of the episode that began at that place; at its end all have ended."""
    found = []
    for server in (world.left, world.right):
        episode_id = server.of(StartEpisode)[place].episode_id
        for item in server.of(object, episode_id):
            if not isinstance(item, StepRows):
                told = msgspec.to_builtins(item, enc_hook=lambda array: array.tolist())
                # A row has a reward of every agent, 0 of one that comes back.
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
    if respawn == "refuse" and all(ends.values()):  # the episode ends with the last of them
        length = max(min(one) for one in ends.values())
    if respawn != "refuse":  # in vectors all at once are the end of the episode
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
