"""What a server records of a team: late members, the global state, and last actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, each, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space
from muxrl.servers.agents.seating import TEAMS
from muxrl.servers.agents.spaces import split_state
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.alone import Alone
from muxrl.servers.episodes.trajectories import Trajectory, separated

TEAM = {"team": ("a", "b")}
TOLD = {"obs": Box((2,)), "action_mask": MultiBinary(3), "state": Box((3,))}
"""The keys that RLlib's QMIX reads: ``obs``, ``action_mask`` and ``state`` (its ENV_STATE)."""


def team_steps(store: ScriptedStore) -> Trajectory:
    (team,) = store.trajectories("team")
    return separated(team)


# --- late members ---------------------------------------------------------------------------


def test_a_team_may_begin_when_all_missing_members_have_departed() -> None:
    store = ScriptedStore(make_plan("abc", TEAM))
    store.start()
    store.step(0, "c")
    store.step(1, "c", terminations={"a": True})
    assert store.step(2, "b").actions == {"b": 2}


def test_a_mask_is_read_by_its_own_members_choices() -> None:
    """The same mask of five is one choice of five to a, and a choice of two and one of three to b.

    The team's mask of b has b's combinations.
    """
    sees = DictSpace({"obs": Box((2,)), "action_mask": MultiBinary(5)})
    acts: dict[str, Space] = {"a": Discrete(5), "b": MultiDiscrete((2, 3))}
    plan = make_plan({"a": sees, "b": sees}, TEAM, acts=acts)
    mask = {"obs": np.zeros(2, np.float32), "action_mask": np.array([1, 0, 1, 1, 0], np.int8)}
    played = Alone(plan.agents, TEAMS.make_seats(plan))
    (read,) = played.look({"a": mask, "b": mask}).block.observations
    assert read["action_mask"][0, 0].tolist() == [[1, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]


# --- the state ------------------------------------------------------------------------------


def told_store(state_size: int | None = None, use_global_state: bool = True) -> ScriptedStore:
    fields: dict[str, Any] = {"use_global_state": use_global_state, "late_members": "allow"}
    sees = dict.fromkeys("ab", DictSpace(TOLD))
    store = ScriptedStore(make_plan(sees, TEAM, state_size=state_size, **fields))
    store.start()
    return store


def told(t: int, members: str = "ab") -> dict[str, Any]:
    """Returns what members observe at `t`: the same state, and masks that forbid action 0."""
    state = np.array([t, 2 * t, 7], np.float32)
    return {
        m: {"obs": seen(m, t), "action_mask": [0, 1, 1], "state": state.copy()} for m in members
    }


def test_an_observed_state_is_shown_to_the_mixer_only() -> None:
    store = told_store()
    store.step(0, observations=told(0))
    store.step(1, observations=told(1, "b"))
    store.end(2, is_truncated=True, final_observations=told(2))
    observed = each(team_steps(store).parts)
    assert [o["state"].tolist() for o in observed] == [[0, 0, 7], [1, 2, 7], [2, 4, 7]]
    assert [o["obs"][1].tolist() for o in observed] == [[ord("b"), t] for t in range(3)]
    assert observed[0]["action_mask"].tolist() == [[0, 1, 1], [0, 1, 1]]


def test_the_simulations_state_takes_precedence() -> None:
    store = told_store(state_size=2)
    store.step(0, observations=told(0), state=[5.0, 6.0])
    store.step(1, observations=told(1), state=[7.0, 8.0])
    store.abort()
    assert team_steps(store).states[0].tolist() == [5, 6]
    assert team_steps(store).observations[0].shape == (2, 2)


def test_without_use_global_state_observations_stand_side_by_side() -> None:
    store = told_store(use_global_state=False)
    store.step(0, observations=told(3))
    store.step(1, observations=told(4))
    store.abort()
    observed = each(team_steps(store).parts)[0]
    assert observed["state"].tolist()[:4] == [ord("a"), 3, ord("b"), 3]
    assert observed["obs"].shape == (2, 2)


def test_a_state_of_another_shape_is_refused() -> None:
    store = told_store()
    bad = told(0)
    bad["b"]["state"] = np.zeros(2, np.float32)
    with pytest.raises(ValueMismatch, match=r"observation of agent 'b'.*state"):
        store.store.accept(Step("e", 0, bad), 0.0)
    assert store.step(0, observations=told(0)).actions == {"a": 0, "b": 0}


def test_agents_in_no_group_have_one_state_too() -> None:
    sees = {a: DictSpace({"x": Box((2,)), "state": Box((n,))}) for a, n in (("a", 3), ("b", 2))}
    (problem,) = CENTRAL.find_problems(make_plan(sees))
    assert problem.startswith(
        "group '(all agents)': agent 'a' observes a state of 3 numbers, agent 'b' a state of 2"
    )


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Box((2,)), (Box((2,)), None)),
        (DictSpace({"obs": Box((2,)), "state": Discrete(3)}), (Box((2,)), Discrete(3))),
        (
            DictSpace(TOLD),
            (DictSpace({k: v for k, v in TOLD.items() if k != "state"}), TOLD["state"]),
        ),
        # A space of nothing but a state is what the agent observes, whatever its key is called.
        (DictSpace({"state": Box((3,))}), (DictSpace({"state": Box((3,))}), None)),
        (
            DictSpace({"state": Box((3,)), "action_mask": MultiBinary(3)}),
            (DictSpace({"state": Box((3,)), "action_mask": MultiBinary(3)}), None),
        ),
    ],
)
def test_where_the_state_is_found(space: Space, expected: tuple[Space, Space | None]) -> None:
    assert split_state(space) == expected


def test_a_state_of_another_kind_is_one_flat_array() -> None:
    space = DictSpace({"obs": Box((2,)), "state": DictSpace({"at": Discrete(3), "to": Box((2,))})})
    (seat,) = TEAMS.make_seats(make_plan({"a": space}, {"team": ("a",)})).values()
    assert seat.observation_space.spaces["state"].shape == (5,)  # type: ignore[union-attr]
    seen_now = {
        "a": {"obs": np.ones(2, np.float32), "state": {"at": 1, "to": np.ones(2, np.float32)}}
    }
    store = ScriptedStore(make_plan({"a": space}, {"team": ("a",)}))
    store.start()
    store.step(0, observations=seen_now)
    store.step(1, observations=seen_now)
    store.abort()
    assert team_steps(store).states[0].tolist() == [0, 1, 0, 1, 1]
