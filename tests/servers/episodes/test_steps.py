"""Steps and rewards of an episode are recorded once, and as a whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, make_plan, open_store, seen

from muxrl.protocol.errors import OutOfOrder, UnsoundValue, ValueMismatch
from muxrl.protocol.messages import EndEpisode, Step
from muxrl.servers.acting import Asked
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.episodes.blocks import Chosen
from muxrl.servers.episodes.columns import pack_chunks, unpack_chunks


@pytest.fixture
def store() -> ScriptedStore:
    return open_store()


# --- one transition a step ------------------------------------------------------------------


def test_the_next_step_before_the_answer_to_the_last_is_refused(store: ScriptedStore) -> None:
    store.store.accept(Step("e", 0, {"a": seen("a", 0)}), 0.0)
    error = store.refused(Step("e", 1, {"a": seen("a", 1)}), OutOfOrder)
    assert "awaiting action" in error.message
    error = store.refused(EndEpisode("e", 1), OutOfOrder)
    assert "awaiting action" in error.message


GOOD = {"a": seen("a", 1), "b": seen("b", 1)}
BAD_STEPS: dict[str, tuple[dict[str, Any], str | None]] = {
    "wrong shape": ({"observations": {**GOOD, "b": np.zeros(3, np.float32)}}, "b"),
    "wrong dtype": ({"observations": {**GOOD, "b": np.zeros(2, np.complex64)}}, "b"),
    "NaN": ({"observations": {**GOOD, "b": np.array([0, np.nan], np.float32)}}, "b"),
    "unknown observer": ({"observations": {**GOOD, "x": seen("x", 1)}}, "x"),
    "unknown rewarded": ({"rewards": {"a": 1.0, "x": 1.0}}, "x"),
    "unknown terminated": ({"terminations": {"x": True}}, "x"),
    "unknown truncated": ({"truncations": {"x": True}}, "x"),
    "reward NaN": ({"rewards": {"a": 1.0, "b": float("nan")}}, "b"),
    "reward infinite": ({"rewards": {"a": 1.0, "b": float("inf")}}, "b"),
    "reward beyond float32": ({"rewards": {"a": 1.0, "b": 1e39}}, "b"),
    "done and observing": ({"terminations": {"b": True}}, "b"),
    "final observation": (
        {"observations": {"a": seen("a", 1)}, "final_observations": {"b": [1]},
         "truncations": {"b": True}}, "b"),
    "truncated without final observation": (
        {"observations": {"a": seen("a", 1)}, "truncations": {"b": True}}, "b"),
    "unknown final observation": ({"final_observations": {"x": [1, 2]}}, "x"),
    "logged action out of range": ({"logged_actions": {"b": 3}}, "b"),
    "log-probability without an action": ({"logged_log_probs": {"b": -1.0}}, "b"),
    "log-probability NaN": (
        {"logged_actions": {"b": 0}, "logged_log_probs": {"b": float("nan")}}, "b"),
    "log-probability infinite": (
        {"logged_actions": {"b": 0}, "logged_log_probs": {"b": float("-inf")}}, "b"),
    "log-probability of what is never drawn": (
        {"logged_actions": {"b": 0}, "logged_log_probs": {"b": -81.0}}, "b"),
    "a probability, not its logarithm": (
        {"logged_actions": {"b": 0}, "logged_log_probs": {"b": 0.3}}, "b"),
    "logged action without observation": (
        {"observations": {"a": seen("a", 1)}, "logged_actions": {"b": 0}}, "b"),
    "late reward of who goes on": ({"late_rewards": {"b": 1.0}}, "b"),
    "late reward NaN": (
        {"observations": {"a": seen("a", 1)}, "terminations": {"b": True},
         "late_rewards": {"b": float("nan")}}, "b"),
    "unknown rewarded late": ({"late_rewards": {"x": 1.0}}, "x"),
}  # fmt: skip
UNSOUND = {"NaN", "reward NaN", "reward infinite", "reward beyond float32", "late reward NaN"}
"""Values for which a simulation may drop an episode; the others are mistakes in its code."""


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_refused_step_leaves_the_episode_as_it_was(store: ScriptedStore, name: str) -> None:
    fields, culprit = BAD_STEPS[name]
    store.step(0)
    item = Step("e", 1, **{"observations": GOOD, "rewards": {"a": 1.0}, **fields})
    refusal = store.refused(item, ValueMismatch)
    assert refusal.agent_id == culprit
    assert isinstance(refusal, UnsoundValue) == (name in UNSOUND)
    assert store.refused(item, ValueMismatch).agent_id == culprit
    assert store.store.counts.num_env_steps == 0
    store.step(1, rewards={"a": 5.0})  # the same step, with sound values
    assert store.end(2).returns == {"a": 5.0, "b": 0.0}
    assert store.recorded("a") == ([0.0, 1.0, 1.0], [0, 1], [5.0, 0.0])


def test_a_reward_that_makes_the_return_infinite_is_refused() -> None:
    store = ScriptedStore(make_plan(max_abs_reward=None))
    store.start()
    store.step(0)
    store.step(1, rewards={"a": 3e38, "b": -3e38})
    for agent, reward in (("a", 3e38), ("b", -3e38), ("a", 1e308)):
        for item in (
            Step("e", 2, GOOD, rewards={agent: reward}),
            EndEpisode("e", 2, rewards={agent: reward}),
            EndEpisode("e", 2, terminations={agent: True}, late_rewards={agent: reward}),
        ):
            error = store.refused(item, ValueMismatch)
            assert error.agent_id == agent
            assert f"the reward of agent {agent!r} is {reward}, which makes its return" in str(
                error
            )
    store.step(2, rewards={"a": -3e38, "b": 3e38})
    assert store.end(3).returns == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize("value", [1e30, -1e30])
def test_a_number_beyond_the_limits_is_refused_by_name(value: float) -> None:
    store = ScriptedStore(make_plan(state_size=1))
    store.start()
    store.step(0, state=[0.0])
    error = store.refused(Step("e", 1, GOOD, rewards={"a": value}, state=[0.0]), ValueMismatch)
    assert error.agent_id == "a"
    assert f"is {value:g}, larger than limits.max_abs_reward, 1e+12" in str(error)
    seen = {**GOOD, "b": np.array([0.0, value], np.float32)}
    error = store.refused(Step("e", 1, seen, state=[0.0]), ValueMismatch)
    assert error.agent_id == "b"
    assert f"expected numbers from -1e+15 to 1e+15, got {value:g} at index [1]" in str(error)
    assert "limits.max_abs_observation" in str(error)
    error = store.refused(Step("e", 1, GOOD, state=[value]), ValueMismatch)
    assert "the global state" in str(error)
    assert "max_abs_observation" in str(error)
    store.step(1, rewards={"a": 1e12}, state=[1e15])


# --- rewards --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["rewards", "late_rewards"])
def test_a_reward_that_no_action_learns_from_is_reported_once(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    store.step(0)
    store.step(1, "a", terminations={"b": True}, rewards={"b": 5.0}, late_rewards={"b": 0.0})
    store.end(2, rewards={"a": 1.0, "b": 0.0})
    assert not caplog.text, "all of it was for an action"
    for episode_id, at_step, at_end in (("late", 7.0, 0.0), ("later", 0.0, 7.0)):
        store.start(episode_id)
        store.step(0, episode_id=episode_id)
        store.step(1, "a", episode_id=episode_id, terminations={"b": True})
        store.step(2, "a", episode_id=episode_id, **{how: {"b": at_step}})
        store.end(3, episode_id, **{how: {"b": at_end}})
    assert caplog.text.count("'b' got a reward after its end") == 1
    assert "for the first time in episode late" in caplog.text


def test_a_servers_return_is_the_mean_over_the_agents_that_were_there(store: ScriptedStore) -> None:
    store.end(0)  # an episode without agents
    assert store.store.counts.episode_return_mean is None
    for i, agents in enumerate(("a", "ab", "ab")):
        store.start(f"e{i}")
        store.step(0, agents, episode_id=f"e{i}")
        store.end(1, f"e{i}", rewards={"a": 3.0})
    assert store.store.counts.recent_returns == [3.0, 1.5, 1.5]
    status = store.store.counts.in_status()
    assert (status["num_episodes"], status["num_returns"]) == (4, 3)
    assert store.store.counts.episode_return_mean == 2.0


def test_rewards_before_a_server_s_agents_first_act_are_counted(store: ScriptedStore) -> None:
    store.step(0, "a", rewards={"a": 2.0, "b": 3.0}, terminations={"b": True})
    store.refused(Step("e", 1, {"b": seen("b", 1)}), ValueMismatch)
    store.step(1, "a", rewards={"a": 1.0})
    assert store.end(2).returns == {"a": 3.0, "b": 3.0}
    assert store.recorded("a")[2] == [1.0, 0.0]


def test_actions_come_into_force_all_at_once_or_not_at_all() -> None:
    store = ScriptedStore(make_plan("ab", shares_policy=False), seating=Seating())
    store.start()

    def chosen(*names: str) -> list[Chosen]:
        states = [np.array([[name]], object) for name in names]
        return [Chosen(np.full((1, 1), i), {}, {"h": h}) for i, h in enumerate(states, 1)]

    def states_of(pending: Any) -> list[Any]:
        """Returns the recurrent states that the policies get."""
        parts = enumerate(pending.blocks[0].served.parts)
        asked = [Asked(one.policy_id, [pending.blocks[0]], [i]) for i, one in parts]
        return [one.states(lambda: {"h": np.array("none", object)})["h"][0] for one in asked]

    item = Step("e", 0, {agent: seen(agent, 0) for agent in "ab"})
    pending: Any = store.store.accept(item, 0.0)
    broken = [*chosen("lost"), Chosen(np.array([["no number"]]), {})]
    with pytest.raises(ValueError, match="no number"):
        pending.blocks[0].finish(broken, 0)
    assert not pending.is_ready
    again: Any = store.store.accept(item, 0.0)
    assert again.blocks[0] is pending.blocks[0]
    assert states_of(pending) == ["none", "none"]
    pending.blocks[0].finish(chosen("a's", "b's"), 3)
    assert pending.answer().actions == {"a": 1, "b": 2}
    following: Any = store.store.accept(Step("e", 1, {"b": seen("b", 1)}), 0.0)
    assert states_of(following) == ["b's"]
    following.blocks[0].finish(chosen("b's next"), 3)
    last = store.store.accept(Step("e", 2, {agent: seen(agent, 2) for agent in "ab"}), 0.0)
    assert states_of(last) == ["a's", "b's next"]


# --- agents that come back --------------------------------------------------------------------


def returning_store(seating: Any = None, *, agents_return: bool = True, **start: Any) -> Any:
    store = ScriptedStore(make_plan(agents_return=agents_return), seating=seating or Seating())
    store.start(**start)
    store.step(0)
    return store


def test_a_saved_chunk_keeps_the_lives_apart() -> None:
    store = returning_store()
    store.step(1, terminations={"b": True})
    store.end(2)
    (chunk,) = unpack_chunks(pack_chunks(store.chunks))
    assert [one.key for one in chunk.trajectories] == ["a", "b", "b~2"]


def test_a_return_is_refused_unless_the_config_says_so() -> None:
    store = returning_store(agents_return=False)
    observations = {a: seen(a, 1) for a in "ab"}
    refusal = store.refused(Step("e", 1, observations, terminations={"b": True}), ValueMismatch)
    assert "simulation.respawn" in refusal.message


def test_returns_of_an_evaluation_count_all_lives_of_an_agent() -> None:
    store = returning_store(mode="eval")
    store.step(1, terminations={"b": True}, rewards={"b": 5.0})
    assert store.step(2, rewards={"b": 7.0}).actions.keys() == {"a", "b"}
    assert store.end(3).returns == {"a": 0.0, "b": 12.0}


def test_without_a_group_each_life_is_one_of_its_own_to_a_central_critic_too() -> None:
    store = returning_store(CENTRAL)
    store.step(1, terminations={"b": True})
    store.end(2, is_truncated=True, final_observations={a: seen(a, 99) for a in "ab"})
    cut_short = dict.fromkeys(("", "a", "b~2"), (False, True))
    assert store.flags() == {**cut_short, "b": (True, False)}
