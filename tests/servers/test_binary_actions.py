"""MultiBinary actions: recorded as a MultiDiscrete of twos."""

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
from muxrl.servers.lookup import find

LIGHTS = MultiBinary(3)
TAKING = ["PPO", "A2C", "IMPALA", "APPO"]


def seat() -> Seat:
    return seat_of(AgentPlan("p", Box((3,)), LIGHTS))


@pytest.mark.parametrize("name", TAKING)
def test_the_log_probability_is_the_sum_over_the_bits(name: str) -> None:
    who = seat()
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
    chosen = act(name, seat(), 1, should_explore=False)
    logits = chosen.outputs[DISTRIBUTION].reshape(3, 2)
    assert chosen.actions.tolist() == [logits.argmax(-1).tolist()]


def test_an_action_chosen_elsewhere_is_recorded_as_it_is() -> None:
    who = seat()
    logged = read_logged(who, {"a": conform(LIGHTS, [True, False, True])}).actions[0, 0]
    assert sent(who, act("PPO", who, 1, logged=logged)).tolist() == [[1, 0, 1]]
    with pytest.raises(Mismatch, match=r"expected MultiBinary\(3\), got \[1, 2, 0\]"):
        conform(LIGHTS, [1, 2, 0])


def test_a_central_critic_records_them_alike() -> None:
    plan = make_plan("ab", {"team": ("a", "b")}, acts=LIGHTS)
    seats: dict[str, Seat] = find("MAPPO").seating.make_seats(plan)
    assert seats["a"].action_space == MultiDiscrete((2, 2, 2))
