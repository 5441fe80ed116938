"""Actions of policies with masks and of MAPPO, as a server's event loop asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.servers.acted import actions_of
from tests.servers.scripted_store import ScriptedStore, make_plan
from tests.servers.untrained import actors_of

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, MultiBinary
from muxrl.servers.acting import Acted, Asked
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.agents.seating import TEAMS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.alone import Alone
from muxrl.servers.lookup import find
from muxrl.servers.trainers.acting import Actors

MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})
PLAN = make_plan({"a": MASKED})
KINDS = ["PPO", "MAPPO"]
OTHERS = ["APPO", "DQN", "SAC"]
SETTINGS: dict[str, dict[str, Any]] = {
    "MAPPO": {"agent_specific_state": True, "obs_agent_id": True, "normalize_values": True},
    "DQN": {"epsilon": 0.5},
}


def make(kind: str) -> tuple[Seat, Actors]:
    """Returns the seat of an agent that observes masks, and an untrained policy."""
    settings = SETTINGS.get(kind, {})
    plan = replace(PLAN, settings=settings, model={"fcnet_hiddens": [8]})
    seats = find(kind).seating.make_seats(plan)
    return seats["a"], actors_of(kind, seats, plan)


def act(seat: Seat, actors: Actors, masks: np.ndarray, should_explore: bool = True) -> Acted:
    """Acts for an agent that observes the same each time, with these masks."""
    value = np.array([1.0, -2.0], np.float32)
    looks = [
        Alone(PLAN.agents, {"a": seat}).look(
            {"a": {"observation": value, "action_mask": mask.astype(np.int8)}}
        )
        for mask in masks
    ]
    blocks = [look.block for look in looks]
    asked = Asked(seat.policy_id, blocks, [0] * len(blocks), should_explore, is_training=True)
    return actors.answer(asked)


@pytest.mark.parametrize("kind", KINDS + OTHERS)
@pytest.mark.parametrize("should_explore", [True, False])
@pytest.mark.parametrize("is_fast", [True, False], ids=["numpy", "torch"])
def test_an_unavailable_action_is_never_taken(
    kind: str, should_explore: bool, is_fast: bool
) -> None:
    seat, actors = make(kind)
    if not is_fast:
        actors.acting(seat.policy_id)._in_numpy = None
    rng = np.random.default_rng(0)
    for _ in range(200):
        masks = rng.integers(2, size=(10, 3))
        masks[~masks.any(1)] = [0, 0, 1]
        chosen = act(seat, actors, masks, should_explore)
        assert masks[np.arange(10), chosen.actions].all()
        if kind not in ("DQN", "SAC"):
            assert (chosen.outputs[LOG_PROB] <= 0).all()


@pytest.mark.parametrize("logged", [{"a": 0}, {"b": 1}, {"a": 2, "b": 0}], ids=str)
def test_a_member_s_logged_action_leaves_the_others_actions_alone(logged: dict[str, int]) -> None:
    store = ScriptedStore(make_plan(dict.fromkeys("abc", MASKED), {"team": ("a", "b", "c")}))
    actors = actors_of("QMIX", TEAMS.make_seats(store.plan), store.plan)
    values = np.float32([1.0, -2.0])
    masks = {"a": [1, 1, 1], "b": [1, 1, 1], "c": [0, 1, 1]}
    seen_now = {m: {"observation": values, "action_mask": mask} for m, mask in masks.items()}

    def answer(episode_id: str, logged: dict[str, int]) -> tuple[dict[str, int], Any]:
        store.start(episode_id, mode="eval")
        step = Step(episode_id, 0, seen_now, logged_actions=logged)
        waiting: Any = store.store.accept(step, 0.0)
        return actions_of(actors, waiting), waiting.blocks[0].chosen[0].actions[0, 0]

    own, _ = answer("own", {})
    assert own["c"] != 0
    answered, recorded = answer("logged", logged)
    assert answered == own | logged
    assert recorded.tolist() == list(answered.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_distribution_is_masked(kind: str) -> None:
    seat, actors = make(kind)
    masks = np.tile([1, 0, 1], (2000, 1))
    # The parts are small enough for numpy.
    chosen = [act(seat, actors, part) for part in np.array_split(masks, 40)]
    actions = np.concatenate([one.actions for one in chosen])
    logits = np.concatenate([one.outputs[DISTRIBUTION] for one in chosen])
    assert (logits[:, 1] == UNAVAILABLE).all()
    odds = np.exp(logits[0, [0, 2]])
    expected = odds[0] / odds.sum()
    assert (actions == 0).mean() == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(2000))
    logp = np.where(actions == 0, np.log(expected), np.log(1 - expected))
    recorded = np.concatenate([one.outputs[LOG_PROB] for one in chosen])
    np.testing.assert_allclose(recorded, logp, atol=1e-5)
