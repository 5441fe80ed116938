"""How a server records a team's steps: as one agent, however many members are present."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import EndEpisode, Step
from muxrl.protocol.rows import pick
from muxrl.servers.agents.seating import TEAMS, Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL

TEAM = {"team": ("a", "b")}


def team_store(**kwargs: Any) -> ScriptedStore:
    store = ScriptedStore(make_plan("abc", TEAM, **kwargs))
    store.start()
    return store


def last_team_observation(store: ScriptedStore) -> dict[str, np.ndarray]:
    last: dict[str, np.ndarray] = pick(store.trajectories("team")[-1].observations, -1)
    return last


def test_a_member_that_never_appeared_is_missed_by_name() -> None:
    store = team_store()
    error = store.refused(Step("e", 0, {"a": seen("a", 0), "c": seen("c", 0)}), ValueMismatch)
    assert error.agent_id == "b"
    assert "group 'team' acts for the first time" in error.message
    assert "without its member 'b'; " in error.message
    assert "set late_members: allow" in error.message
    store.step(0, "c")  # the team need not begin at the same step as other agents
    store.refused(Step("e", 1, {"b": seen("b", 1)}), ValueMismatch)
    assert store.step(1, "abc").actions == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("sent", ["c", "ac"])
def test_a_truncated_team_without_final_observations_is_refused(sent: str) -> None:
    store = team_store()
    store.step(0, "abc")
    finals = {m: seen(m, 1) for m in sent}
    ends = {"a": True} if "a" in sent else {}
    item = EndEpisode("e", 1, True, terminations=ends, final_observations=finals)
    assert store.refused(item, ValueMismatch).agent_id in {"a", "b"} - ends.keys()


@pytest.mark.parametrize("state", [None, [1.0, 2.0], [1.0, 2.0, float("nan")], "three"])
def test_a_team_s_state_is_checked(state: Any) -> None:
    store = team_store(state_size=3)
    observations = {m: seen(m, 0) for m in "abc"}
    error = store.refused(Step("e", 0, observations, state=state), ValueMismatch)
    assert "global state" in error.message
    good = [1.0, 2.0, 3.0]
    store.step(0, "abc", state=good)
    store.step(1, "abc", state=good)
    end = EndEpisode("e", 2, True, final_observations=observations, state=state)
    assert "global state" in store.refused(end, ValueMismatch).message
    store.end(2, is_truncated=True, final_observations=observations, state=good)
    assert last_team_observation(store)["state"].tolist() == good


# --- truncated without a final observation ----------------------------------------------------

ONE_IS_CUT_SHORT: dict[str, Any] = {
    "with its team": EndEpisode("e", 1, True, final_observations={m: seen(m, 1) for m in "ac"}),
    "by its own flag": EndEpisode(
        "e", 1, True, truncations={"b": True}, final_observations={m: seen(m, 1) for m in "ac"}
    ),
    "while its team goes on": Step(
        "e", 1, {m: seen(m, 1) for m in "ac"}, truncations={"b": True}
    ),
    "as its team-mate terminates": EndEpisode(
        "e", 1, True, terminations={"a": True}, final_observations={m: seen(m, 1) for m in "ac"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("seating", [TEAMS, CENTRAL])
@pytest.mark.parametrize("how", ONE_IS_CUT_SHORT)
def test_a_member_that_acted_is_not_truncated_without_its_final_observation(
    how: str, seating: Seating
) -> None:
    store = ScriptedStore(make_plan("abc", TEAM), seating=seating)
    for episode_id, mode in (("e", "train"), ("measured", "eval")):
        store.start(episode_id, mode=mode)
        store.step(0, "abc", episode_id)
    item = ONE_IS_CUT_SHORT[how]
    error = store.refused(item, ValueMismatch)
    assert (error.agent_id, error.expected) == ("b", "final_observations['b']")
    assert "'b' was truncated without its final observation" in error.message
    assert store.store.counts.num_env_steps == 0
    # Nothing of the refused item was recorded, so that a corrected one is accepted.
    finals = {**item.final_observations, "b": seen("b", 1)}
    store.store.accept(msgspec.structs.replace(item, final_observations=finals), 0.0)
    store.store.accept(msgspec.structs.replace(item, episode_id="measured"), 0.0)


def test_a_team_whose_acting_member_terminates_is_not_cut_short_unseen() -> None:
    store = ScriptedStore(make_plan("ab", TEAM))
    store.start()
    store.step(0)
    store.step(1, "a")
    item = EndEpisode("e", 2, terminations={"a": True}, truncations={"b": True})
    assert store.refused(item, ValueMismatch).agent_id == "b"
    store.end(2, terminations={"a": True}, truncations={"b": True},
              final_observations={"b": seen("b", 2)})  # fmt: skip
    assert store.flags()["team"] == (False, True)


def test_no_state_is_needed_where_everybody_terminates() -> None:
    for seating in (TEAMS, CENTRAL):
        store = ScriptedStore(make_plan("abc", TEAM, state_size=3), seating=seating)
        store.start()
        store.step(0, "abc", state=[1.0, 2.0, 3.0])
        store.end(1, final_observations={m: seen(m, 1) for m in "abc"})
        assert set(store.flags().values()) == {(True, False)}
