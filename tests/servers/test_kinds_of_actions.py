"""Box actions are recorded in the policy's scale, and MultiBinary ones as a MultiDiscrete of
twos."""

from __future__ import annotations

import numpy as np
import pytest
from tests.servers.scripted_store import make_plan, seat_of
from tests.servers.untrained import act, read_logged, sent

from muxrl.protocol.spaces import Box, MultiBinary, MultiDiscrete
from muxrl.protocol.values import Mismatch, conform
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB, log_probs_of
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import AgentPlan
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.lookup import find

LOW, HIGH = 2.0, 10.0
TAKING = ["PPO", "A2C", "IMPALA", "APPO"]


def seat(low: float | None = LOW, high: float | None = HIGH) -> Seat:
    return seat_of(AgentPlan("p", Box((3,)), Box((2,), "float32", low, high)))


@pytest.mark.parametrize("name", TAKING)
def test_the_log_probability_is_that_of_the_recorded_action(name: str) -> None:
    who = seat()
    chosen = act(name, who, 400)
    actions = chosen.actions
    assert (np.abs(actions) > 1.0).any()  # otherwise a clipped record would not be noticed
    mean, log_std = np.split(chosen.outputs[DISTRIBUTION], 2, axis=1)
    z = (actions - mean) / np.exp(log_std)
    expected = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(chosen.outputs[LOG_PROB], expected, atol=1e-4)
    levers = sent(who, chosen)
    assert levers.dtype == np.float32
    assert all(map(to_gymnasium(who.action_space).contains, levers))
    scaled = LOW + (actions + 1.0) * (HIGH - LOW) / 2
    np.testing.assert_allclose(levers, np.clip(scaled, LOW, HIGH), rtol=1e-6)


def test_sac_acts_within_its_scale_and_covers_it() -> None:
    who = seat()
    chosen = act("SAC", who, 400)
    assert np.abs(chosen.actions).max() < 1.0
    assert chosen.actions.min() < -0.8
    assert chosen.actions.max() > 0.8
    assert not chosen.outputs  # with a replay nobody reads outputs
    assert all(map(to_gymnasium(who.action_space).contains, sent(who, chosen)))


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_the_greedy_action_is_the_same_for_equal_observations(name: str) -> None:
    actions = act(name, seat(), 5, should_explore=False).actions
    np.testing.assert_allclose(actions, np.tile(actions[0], (5, 1)))


def test_an_action_taken_elsewhere_is_recorded_in_the_policys_scale() -> None:
    who = seat()
    elsewhere = np.array([2.0, 8.0], np.float32)
    logged = read_logged(who, {"a": elsewhere}).actions[0, 0]
    np.testing.assert_allclose(logged, [-1.0, 0.5])
    np.testing.assert_allclose(sent(who, act("PPO", who, 1, logged=logged)), [elsewhere])


def test_without_bounds_the_policys_action_is_the_simulations() -> None:
    who = seat(None, None)
    chosen = act("PPO", who, 20)
    np.testing.assert_array_equal(sent(who, chosen), chosen.actions)
    elsewhere = np.array([-30.0, 400.0], np.float32)
    np.testing.assert_array_equal(read_logged(who, {"a": elsewhere}).actions, [[elsewhere]])


LIGHTS = MultiBinary(3)


def seat_of_lights() -> Seat:
    return seat_of(AgentPlan("p", Box((3,)), LIGHTS))


@pytest.mark.parametrize("name", TAKING)
def test_the_log_probability_of_bits_is_their_sum(name: str) -> None:
    who = seat_of_lights()
    assert who.action_space == MultiDiscrete((2, 2, 2))
    chosen = act(name, who, 200)
    assert len(np.unique(chosen.actions, axis=0)) == 8
    lights = sent(who, chosen)
    assert all(conform(LIGHTS, one) is not None for one in lights)
    log_probs = log_probs_of(chosen.outputs[DISTRIBUTION].reshape(-1, 3, 2))
    expected = np.take_along_axis(log_probs, lights[..., None], axis=-1).sum(axis=(1, 2))
    np.testing.assert_allclose(chosen.outputs[LOG_PROB], expected, atol=1e-5)


@pytest.mark.parametrize("name", TAKING)
def test_the_greedy_action_has_the_likelier_value_of_each_bit(name: str) -> None:
    chosen = act(name, seat_of_lights(), 1, should_explore=False)
    logits = chosen.outputs[DISTRIBUTION].reshape(3, 2)
    assert chosen.actions.tolist() == [logits.argmax(-1).tolist()]


def test_bits_chosen_elsewhere_are_recorded_as_they_are() -> None:
    who = seat_of_lights()
    logged = read_logged(who, {"a": conform(LIGHTS, [True, False, True])}).actions[0, 0]
    assert sent(who, act("PPO", who, 1, logged=logged)).tolist() == [[1, 0, 1]]
    with pytest.raises(Mismatch, match=r"expected MultiBinary\(3\), got \[1, 2, 0\]"):
        conform(LIGHTS, [1, 2, 0])


def test_a_central_critic_records_them_alike() -> None:
    plan = make_plan("ab", {"team": ("a", "b")}, acts=LIGHTS)
    seats: dict[str, Seat] = find("MAPPO").seating.make_seats(plan)
    assert seats["a"].action_space == MultiDiscrete((2, 2, 2))
