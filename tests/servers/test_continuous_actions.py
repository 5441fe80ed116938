"""Continuous actions: what is recorded is the policy's, what is sent is the simulation's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ray.rllib.core.columns import Columns
from tests.servers.untrained import act

from muxrl.protocol.spaces import Box
from muxrl.servers.agents.seats import SeatAction, SoloSeat
from muxrl.servers.config import AgentPlan
from muxrl.servers.gymnasium_spaces import to_gymnasium

LOW, HIGH = 2.0, 10.0


def seat(low: float | None = LOW, high: float | None = HIGH) -> SoloSeat:
    return SoloSeat("a", AgentPlan("p", Box((3,)), Box((2,), "float32", low, high)))


def sent(who: SoloSeat, chosen: SeatAction) -> Any:
    return who.act(chosen.action, {"a"})["a"]


@pytest.mark.parametrize("name", ["PPO", "A2C", "IMPALA", "APPO"])
def test_the_log_probability_is_that_of_the_recorded_action(name: str) -> None:
    who = seat()
    chosen = act(name, who, 400)
    actions = np.array([one.action for one in chosen])
    assert (np.abs(actions) > 1.0).any()  # so that clipping what was recorded would be seen
    for one in chosen:
        mean, log_std = np.split(one.extra_outputs[Columns.ACTION_DIST_INPUTS], 2)
        z = (one.action - mean) / np.exp(log_std)
        expected = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum()
        assert one.extra_outputs[Columns.ACTION_LOGP] == pytest.approx(expected, abs=1e-4)
        action = sent(who, one)
        assert action.dtype == np.float32
        assert to_gymnasium(who.action_space).contains(action)
        scaled = LOW + (one.action + 1.0) * (HIGH - LOW) / 2
        np.testing.assert_allclose(action, np.clip(scaled, LOW, HIGH), rtol=1e-6)


def test_sac_acts_inside_its_scale_and_all_over_it() -> None:
    who = seat()
    chosen = act("SAC", who, 400)
    actions = np.array([one.action for one in chosen])
    assert np.abs(actions).max() < 1.0
    assert actions.min() < -0.8
    assert actions.max() > 0.8
    assert not chosen[0].extra_outputs  # nobody reads them from a replay
    assert all(to_gymnasium(who.action_space).contains(sent(who, one)) for one in chosen)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_the_likeliest_action_is_one_and_the_same(name: str) -> None:
    chosen = act(name, seat(), 5, should_explore=False)
    for one in chosen:
        np.testing.assert_allclose(one.action, chosen[0].action)


def test_an_action_taken_elsewhere_is_recorded_in_the_policys_scale() -> None:
    who = seat()
    elsewhere = np.array([2.0, 8.0], np.float32)
    logged = who.read_logged({"a": elsewhere})
    np.testing.assert_allclose(logged, [-1.0, 0.5])
    (one,) = act("PPO", who, 1, logged=logged)
    np.testing.assert_allclose(sent(who, one), elsewhere)


def test_without_bounds_the_policys_action_is_the_simulations() -> None:
    who = seat(None, None)
    for one in act("PPO", who, 20):
        np.testing.assert_array_equal(sent(who, one), one.action)
    elsewhere = np.array([-30.0, 400.0], np.float32)
    np.testing.assert_array_equal(who.read_logged({"a": elsewhere}), elsewhere)
