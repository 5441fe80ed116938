"""What a learner is given of stacked frames is what a loop over each agent's episode gives."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.scripted_store import ScriptedStore, each, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, Discrete
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import MASKED_AGENTS, Seating
from muxrl.servers.algorithms.replay.steps import StepReplay
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.trainers.replay_size import bytes_of

AGENTS = "ab"


class Played(NamedTuple):
    """An episode: who observes when, and how it ends for each."""

    steps: list[str]
    """By t: the agents that observe."""
    ends: dict[str, tuple[int, bool, bool]]
    """By agent: at which t it ends, whether by truncation, whether with a final observation."""


@st.composite
def episodes(draw: st.DrawFn, *, together: bool) -> Played:
    length = draw(st.integers(1, 9))
    ends = {}
    for agent in AGENTS:
        at = length if together else draw(st.integers(1, length))
        is_truncated = ends["a"][1] if together and ends else draw(st.booleans())
        ends[agent] = at, is_truncated, is_truncated or (not together and draw(st.booleans()))
    steps = [
        "".join(a for a in AGENTS if t < ends[a][0] and (t == 0 or draw(st.booleans())))
        for t in range(length)
    ]
    return Played(steps, ends)


def play(store: ScriptedStore, played: Played) -> None:
    store.start()
    length = len(played.steps)
    for t, agents in enumerate(played.steps):
        store.step(t, agents, **_ended(played, t))
    store.end(length, **_ended(played, length))


def _ended(played: Played, t: int) -> dict[str, Any]:
    now = {a: end for a, end in played.ends.items() if end[0] == t}
    return {
        "rewards": {},
        "terminations": {a: True for a, end in now.items() if not end[1]},
        "truncations": {a: True for a, end in now.items() if end[1]},
        "final_observations": {a: seen(a, t) for a, end in now.items() if end[2]},
    }


def naive(played: Played, agent: str, k: int) -> dict[int, np.ndarray]:
    """Returns the agent's stacks by t, that of its end too."""
    times = [t for t, agents in enumerate(played.steps) if agent in agents]
    if played.ends[agent][2]:
        times.append(played.ends[agent][0])
    return {
        t: np.concatenate([seen(agent, times[max(0, i - j)]) for j in reversed(range(k))])
        for i, t in enumerate(times)
    }


def stacking(plan: ServerPlan, k: int) -> ServerPlan:
    return dataclasses.replace(plan, frame_stack=k, late_members="allow")


def recorded(store: ScriptedStore, seat_id: str) -> list[Any]:
    """Returns what a seat observed, over all chunks; each begins with the end of the one before."""
    found: list[Any] = []
    for one in store.trajectories(seat_id):
        found += each(one.observations)[bool(found) :]
    return found


@given(st.data(), st.integers(2, 4), st.sampled_from([1, 3, 10**9]))
def test_of_an_agent_alone(data: st.DataObject, k: int, batch_env_steps: int) -> None:
    """Sequences that are cut anywhere (on-policy), and all steps drawn from a replay."""
    played = data.draw(episodes(together=False))
    store = ScriptedStore(stacking(make_plan(AGENTS), k), batch_env_steps, seating=Seating())
    play(store, played)
    pairs = set()
    for agent in AGENTS:
        expected = list(naive(played, agent, k).values())
        if not played.ends[agent][2]:
            expected.append(expected[-1])  # it terminates, so this is not bootstrapped from
        np.testing.assert_array_equal(recorded(store, agent), expected)
        pairs |= {(*a, *b) for a, b in pairwise(expected)}
    replay = StepReplay(100, 0)
    for chunk in store.chunks:
        for one in chunk.trajectories:
            replay.add(one)
    batch = replay.sample(8)
    for seen_then in np.concatenate([batch["obs"], batch["new_obs"]], axis=1):
        assert tuple(seen_then) in pairs


@given(st.data(), st.integers(2, 4), st.booleans())
def test_of_a_team_and_of_agents_with_a_central_critic(
    data: st.DataObject, k: int, is_central: bool
) -> None:
    """Whole episodes, with zeros for members that are absent; side by side they are the state."""
    played = data.draw(episodes(together=True))
    plan = stacking(make_plan(AGENTS, {"team": ("a", "b")}), k)
    store = ScriptedStore(plan, needs_whole_episodes=True, seating=CENTRAL if is_central else None)
    play(store, played)
    stacks = {agent: naive(played, agent, k) for agent in AGENTS}
    times = [t for t, agents in enumerate(played.steps) if agents]
    if played.ends["a"][1]:
        times.append(len(played.steps))
    nothing = np.zeros(2 * k)
    rows = [[stacks[agent].get(t, nothing) for agent in AGENTS] for t in times]
    if not played.ends["a"][1]:
        rows.append(rows[-1])
    for i, agent in enumerate(AGENTS):
        seat = recorded(store, agent if is_central else "team")
        own = [o["obs"] if is_central else o["obs"][i] for o in seat]
        np.testing.assert_array_equal(own, [both[i] for both in rows])
        state = [o["state"][: 4 * k].ravel() for o in seat]
        is_last_departed = is_central and not played.ends["a"][1]
        shown = slice(None, -1) if is_last_departed else slice(None)
        np.testing.assert_array_equal(state[shown], [np.concatenate(both) for both in rows][shown])


def test_a_refused_step_leaves_no_frame_and_a_mask_is_not_stacked() -> None:
    masked = DictSpace({"action_mask": Box((3,), "int8", 0, 1), "seen": Box((2,))})
    plan = stacking(make_plan({"a": masked, "b": masked}), 2)
    store = ScriptedStore(plan, seating=MASKED_AGENTS)
    store.start()

    def looks(agent: str, t: int, mask: int) -> dict[str, Any]:
        return {"action_mask": np.full(3, mask, np.int8), "seen": seen(agent, t)}

    for t in range(2):
        refused = {"a": looks("a", 90, 1), "b": looks("b", 90, 0)}
        store.refused(Step("e", t, refused), ValueMismatch)
        store.step(t, observations={a: looks(a, t, 1) for a in AGENTS})
    store.end(2, terminations=dict.fromkeys(AGENTS, True))
    for agent in AGENTS:
        first, second, _ = recorded(store, agent)
        assert first["obs"].tolist() == [*seen(agent, 0), *seen(agent, 0)]
        assert second["obs"].tolist() == [*seen(agent, 0), *seen(agent, 1)]
        assert second["action_mask"].tolist() == [1, 1, 1]


def test_evaluation_stacks_and_a_repeated_step_is_one_frame() -> None:
    store = ScriptedStore(stacking(make_plan(AGENTS), 2), seating=Seating())
    store.start(mode="eval")
    store.step(0)
    store.step(0)
    item = Step("e", 1, {a: seen(a, 1) for a in AGENTS})
    pending: Any = store.store.accept(item, store.now)
    assert pending.block.observations[0][0, :, 1::2].tolist() == [[0, 1], [0, 1]]


def test_the_state_that_a_simulation_sends_is_not_stacked() -> None:
    plan = stacking(make_plan(AGENTS, {"team": ("a", "b")}, state_size=1), 3)
    for seating in (None, CENTRAL):
        store = ScriptedStore(plan, seating=seating)
        store.start()
        for t in range(2):
            store.step(t, state=np.array([t], np.float32), rewards={})
        store.end(2, terminations=dict.fromkeys(AGENTS, True))
        seat = recorded(store, "team" if seating is None else "a")
        assert [o["state"].tolist() for o in seat[:2]] == [[0.0], [1.0]]
        assert seat[1]["obs"].shape[-1] == 6


def test_images_are_stacked_by_channel_and_scaled_once() -> None:
    space = Box((2, 2, 3), "uint8", 0, 255)
    plan = stacking(make_plan({"a": space}), 2)
    store = ScriptedStore(dataclasses.replace(plan, scale_observations="images"), seating=Seating())
    store.start()
    images = np.random.default_rng(0).integers(0, 256, (2, 2, 2, 3), np.uint8)
    for t, image in enumerate(images):
        store.step(t, observations={"a": image}, rewards={})
    store.end(2, terminations={"a": True})
    seat = store.seats["a"]
    seen_now = recorded(store, "a")[1]
    assert seat.observation_space == Box((2, 2, 6), "float32", 0.0, 1.0)
    assert 0.0 <= seen_now.min() <= seen_now.max() <= 1.0
    np.testing.assert_array_equal(seen_now, np.concatenate(images, -1).astype(np.float32) / 255)


def test_statistics_are_of_single_observations_and_a_frame_keeps_its_units() -> None:
    plan = dataclasses.replace(stacking(make_plan(AGENTS), 2), normalize_observations=True)
    store = ScriptedStore(plan, seating=Seating())
    store.start()
    for t in range(5):
        store.step(t, rewards={})
    store.end(5, terminations=dict.fromkeys(AGENTS, True))
    (statistics,) = store.observing.get_state()["policies"]["default"].values()
    assert (statistics["count"], statistics["mean"].shape) == (10, (2,))
    stacks = recorded(store, "a")
    for before, after in pairwise(stacks[:5]):
        np.testing.assert_array_equal(before[2:], after[:2])


@pytest.mark.parametrize("k", [1, 4])
def test_a_replay_takes_so_many_times_the_memory_for_observations(k: int) -> None:
    plan = {"a": AgentPlan("p", Box((84, 84, 1), "uint8", 0, 255), Discrete(2))}
    space = Observing(plan, frame_stack=k).space(plan["a"].observation_space)
    assert bytes_of(space) == k * 84 * 84 * 4
