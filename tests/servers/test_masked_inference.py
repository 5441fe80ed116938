"""Actions of masked policies and of MAPPO's, as the event loop asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from tests.servers.acted import actions_of
from tests.servers.scripted_store import ScriptedStore, make_plan

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, MultiBinary
from muxrl.servers.acting import Answer, Asked
from muxrl.servers.agents.seating import MASKED_AGENTS, TEAMS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.impala import MaskableAPPOTorchRLModule
from muxrl.servers.algorithms.mappo.rl_module import MAPPOTorchRLModule
from muxrl.servers.algorithms.mappo.seating import CENTRAL
from muxrl.servers.algorithms.off_policy.rl_modules import (
    MaskableDQNTorchRLModule,
    MaskableSACTorchRLModule,
)
from muxrl.servers.algorithms.qmix import QMIXConfig
from muxrl.servers.algorithms.qmix.rl_module import QMIXTorchRLModule
from muxrl.servers.alone import Alone
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.rllib.action_masks import MaskablePPOTorchRLModule
from muxrl.servers.rllib.inference import Inference

MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})
PLAN = make_plan({"a": MASKED})
KINDS = {"PPO": MaskablePPOTorchRLModule, "MAPPO": MAPPOTorchRLModule}
OTHERS = {
    "APPO": MaskableAPPOTorchRLModule,
    "DQN": MaskableDQNTorchRLModule,
    "SAC": MaskableSACTorchRLModule,
}
SETTINGS = {
    "MAPPO": {"agent_specific_state": True, "obs_agent_id": True, "normalize_values": True},
    "DQN": {"dueling": True, "double_q": True, "num_atoms": 1, "epsilon": 0.5},
    "SAC": {"twin_q": True},
}


def make_seat(kind: str) -> Seat:
    seating = CENTRAL if kind == "MAPPO" else MASKED_AGENTS
    return seating.make_seats(PLAN)["a"]


def build(kind: str, seat: Seat) -> MultiRLModule:
    torch.manual_seed(0)
    model = vars(DefaultModelConfig(fcnet_hiddens=[8], vf_share_layers=False))
    observed, acted = spaces_of(seat)
    spec = RLModuleSpec(
        module_class=(KINDS | OTHERS)[kind],
        observation_space=observed,
        action_space=acted,
        inference_only=True,
        model_config=model | SETTINGS.get(kind, {}),
    )
    return MultiRLModuleSpec(rl_module_specs={seat.policy_id: spec}).build()


def act(seat: Seat, inference: Inference, masks: np.ndarray, should_explore: bool = True) -> Answer:
    """Acts for an agent that observes the same, and these masks."""
    value = np.array([1.0, -2.0], np.float32)
    looks = [
        Alone(PLAN.agents, {"a": seat}).look(
            {"a": {"observation": value, "action_mask": mask.astype(np.int8)}}
        )
        for mask in masks
    ]
    blocks = [look.block for look in looks]
    asked = Asked(seat.policy_id, blocks, [0] * len(blocks), should_explore, is_training=True)
    return inference.answer(asked)


@pytest.mark.parametrize("kind", KINDS | OTHERS)
@pytest.mark.parametrize("should_explore", [True, False])
@pytest.mark.parametrize("is_fast", [True, False], ids=["numpy", "torch"])
def test_an_unavailable_action_is_never_taken(
    kind: str, should_explore: bool, is_fast: bool
) -> None:
    seat = make_seat(kind)
    inference = Inference(lambda: build(kind, seat), seed=0)
    if not is_fast:
        inference._live.numpy[seat.policy_id] = None
    rng = np.random.default_rng(0)
    for _ in range(200):
        masks = rng.integers(2, size=(10, 3))
        masks[~masks.any(1)] = [0, 0, 1]
        chosen = act(seat, inference, masks, should_explore)
        assert masks[np.arange(10), chosen.actions].all()
        if should_explore and kind != "DQN":
            assert (chosen.outputs[Columns.ACTION_LOGP] <= 0).all()


@pytest.mark.parametrize("is_fast", [True, False], ids=["numpy", "forward"])
@pytest.mark.parametrize("logged", [{"a": 0}, {"b": 1}, {"a": 2, "b": 0}], ids=str)
def test_a_member_s_logged_action_leaves_the_others_theirs(
    logged: dict[str, int], is_fast: bool
) -> None:
    store = ScriptedStore(make_plan(dict.fromkeys("abc", MASKED), {"team": ("a", "b", "c")}))
    seat = TEAMS.make_seats(store.plan)["team"]
    observed, acted = spaces_of(seat)
    spec = RLModuleSpec(
        module_class=QMIXTorchRLModule,
        observation_space=observed,
        action_space=acted,
        inference_only=True,
        model_config=QMIXConfig().model_config,
    )
    inference = Inference(MultiRLModuleSpec(rl_module_specs={"team": spec}).build, seed=0)
    inference._live.acts_in_numpy["team"] = is_fast
    values = np.float32([1.0, -2.0])
    masks = {"a": [1, 1, 1], "b": [1, 1, 1], "c": [0, 1, 1]}
    seen_now = {m: {"observation": values, "action_mask": mask} for m, mask in masks.items()}

    def answer(episode_id: str, logged: dict[str, int]) -> tuple[dict[str, int], Any]:
        store.start(episode_id, mode="eval")
        step = Step(episode_id, 0, seen_now, logged_actions=logged)
        waiting: Any = store.store.accept(step, 0.0)
        return actions_of(inference, waiting), waiting.block.chosen[0].actions[0, 0]

    own, _ = answer("own", {})
    assert own["c"] != 0
    answered, recorded = answer("logged", logged)
    assert answered == own | logged
    assert recorded.tolist() == list(answered.values())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_is_the_masked_distribution(kind: str) -> None:
    seat = make_seat(kind)
    inference = Inference(lambda: build(kind, seat), seed=0)
    masks = np.tile([1, 0, 1], (2000, 1))
    # In parts that are small enough for numpy.
    chosen = [act(seat, inference, part) for part in np.array_split(masks, 40)]
    actions = np.concatenate([one.actions for one in chosen])
    logits = np.concatenate([one.outputs[Columns.ACTION_DIST_INPUTS] for one in chosen])
    assert (logits[:, 1] == UNAVAILABLE).all()
    odds = np.exp(logits[0, [0, 2]])
    expected = odds[0] / odds.sum()
    assert (actions == 0).mean() == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(2000))
    logp = np.where(actions == 0, np.log(expected), np.log(1 - expected))
    recorded = np.concatenate([one.outputs[Columns.ACTION_LOGP] for one in chosen])
    np.testing.assert_allclose(recorded, logp, atol=1e-5)
