"""Sampling follows the policy's distribution; new weights change places with the old."""

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import tree
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from tests.servers.acted import act_on
from tests.servers.scripted_store import ScriptedStore, make_plan, seat_of, seen
from tests.servers.untrained import asked

from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.acting import Answer, Asked
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.config import AgentPlan
from muxrl.servers.rllib import on_gpu
from muxrl.servers.rllib.inference import Inference

OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)
AGENTS = {"a": AgentPlan("p", Box((4,)), Discrete(3))}
SEAT = seat_of(AGENTS["a"])


def inference(
    policies: tuple[str, ...] = ("p",), *, on_gpu: bool = False, **model: Any
) -> Inference:
    config = get_algorithm("PPO").make_config({}, model)
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = OBSERVATIONS, ACTIONS
    spec.inference_only, spec.model_config = True, config.model_config
    build = MultiRLModuleSpec(rl_module_specs=dict.fromkeys(policies, spec)).build
    return Inference(build, seed=0, on_gpu=on_gpu)


def rows(num: int, should_explore: bool = True, **how: Any) -> Asked:
    """Returns what policy "p" is asked: the same four numbers, `num` times."""
    observations = np.tile(np.array([0.5, -0.5, 0.1, 0.9], np.float32), (num, 1))
    how = {"should_explore": should_explore, "is_training": True, **how}
    return asked(SEAT, AGENTS, observations, **how)


def act(served: Inference, num: int, should_explore: bool = True, **how: Any) -> Answer:
    return served.answer(rows(num, should_explore, **how))


@pytest.mark.parametrize("num_steps", [1, 100], ids=["in torch", "in numpy"])
def test_actions_are_drawn_from_the_distribution_that_is_recorded(
    num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one, all goes through numpy
    served = inference()
    # 40 rows go through numpy, 4,000 through torch.
    chosen = [act(served, 4000 // num_steps) for _ in range(num_steps)]
    logits = chosen[0].outputs[Columns.ACTION_DIST_INPUTS][0]
    expected = np.exp(logits) / np.exp(logits).sum()
    actions = np.concatenate([one.actions for one in chosen])
    drawn = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(drawn, expected, atol=0.04)
    log_probs = np.concatenate([one.outputs[Columns.ACTION_LOGP] for one in chosen])
    np.testing.assert_allclose(log_probs, np.log(expected[actions]), atol=1e-4)


def test_greedy_takes_the_likeliest_and_logged_actions_stand() -> None:
    greedy = act(inference(), 3, should_explore=False)
    best = greedy.outputs[Columns.ACTION_DIST_INPUTS].argmax(axis=1)
    np.testing.assert_array_equal(greedy.actions, best)
    logged = act(inference(), 2, logged=2)
    # The policy did not choose it: its own probability is beside the point.
    assert logged.actions.tolist() == [2, 2]
    assert np.isposinf(logged.outputs[Columns.ACTION_LOGP]).all()


def test_both_copies_follow_a_module_whose_weights_change_in_place() -> None:
    served, learned = inference(), inference().modules["p"]
    for version in range(1, 6):
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.add_(0.1)
        served.follow({"p": learned}, version)
        assert served.weights_seq_no == version
        for name, tensor in served.modules["p"].state_dict().items():
            assert torch.equal(tensor, learned.state_dict()[name])
    other = inference().modules["p"]
    served.follow({"p": other}, 6)
    assert torch.equal(next(served.modules["p"].parameters()), next(other.parameters()))


def logits_of(served: Inference, num: int = 1, **how: Any) -> Any:
    outputs = act(served, num, should_explore=False, **how).outputs
    return outputs[Columns.ACTION_DIST_INPUTS][0]


def test_loading_changes_the_copy_in_use_and_its_version() -> None:
    served, other = inference(), inference()
    before = logits_of(served)
    assert served.weights_seq_no == 0
    served.load(other.modules.get_state(), 7)
    assert served.weights_seq_no == 7
    after = logits_of(served)
    np.testing.assert_array_equal(after, logits_of(other))
    assert (before != after).any()


def test_a_recurrent_policy_carries_its_state_from_step_to_step() -> None:
    served = inference(use_lstm=True)
    assert served.is_stateful
    first, again = (act(served, 1, should_explore=False) for _ in range(2))
    second = act(served, 1, should_explore=False, states=first.states)
    assert Columns.STATE_OUT in second.outputs
    flat = [np.concatenate([np.ravel(leaf) for leaf in tree.flatten(one.states)])
            for one in (first, again, second)]  # fmt: skip
    np.testing.assert_array_equal(flat[0], flat[1])  # a pass keeps nothing to itself
    assert (flat[0] != flat[2]).any()


def test_a_policy_that_raises_keeps_nobody_elses_recurrent_state() -> None:
    plan = make_plan("ab")
    agents = {a: dataclasses.replace(plan.agents[a], policy_id=p, observation_space=Box((4,)))
              for a, p in ("ap", "bq")}  # fmt: skip
    store = ScriptedStore(dataclasses.replace(plan, agents=agents), seating=Seating())
    store.start("e", mode="eval")
    both = {agent: np.tile(seen(agent, 0), 2) for agent in "ab"}
    waiting: Any = store.store.accept(Step("e", 0, both), 0.0)
    served = inference(use_lstm=True, policies=("p", "q"))
    broken = served.modules["q"]
    forward, broken.forward_inference = broken.forward_inference, None
    with pytest.raises(TypeError):
        act_on(served, waiting)
    assert not waiting.is_ready
    broken.forward_inference = forward
    act_on(served, waiting)
    following: Any = store.store.accept(Step("e", 1, both), 0.0)
    for number, agent in enumerate("ab"):
        seat = store.seats[agent]
        states = Asked(seat.policy_id, [following.block], [number]).states(dict)
        expected = served.answer(asked(seat, {agent: agents[agent]}, both[agent][None])).states
        tree.map_structure(np.testing.assert_array_equal, states, expected)


def test_a_pass_of_much_work_is_made_on_a_gpu_with_the_newest_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In place of a GPU the processor: what matters is which passes go there, and with what."""
    monkeypatch.setattr(on_gpu, "DEVICE", "cpu")
    monkeypatch.setattr(on_gpu, "MIN_FLOPS", 100 * 2 * (4 * 8 + 8 * 3))  # of 100 rows
    passes: list[int] = []
    forward = on_gpu.ModuleOnGpu.forward_inference

    def counted(self: Any, batch: Any) -> Any:
        passes.append(len(batch[Columns.OBS]))
        return forward(self, batch)

    monkeypatch.setattr(on_gpu.ModuleOnGpu, "forward_inference", counted)
    served = inference(fcnet_hiddens=[8], vf_share_layers=True, on_gpu=True)
    plain = inference(fcnet_hiddens=[8], vf_share_layers=True)
    served.keep_untrained()

    for seq_no in range(1, 4):
        state = plain.modules.get_state()
        for name, weight in state["p"].items():
            state["p"][name] = weight + np.float32(0.25)
        plain.load(state, seq_no)
        served.load(state, seq_no)
        for num in (99, 100, 300):
            np.testing.assert_allclose(logits_of(served, num), logits_of(plain, num), rtol=1e-5)
        served.load(state, seq_no)  # as many loads between two passes as there are copies
    assert passes == [100, 300] * 3
    logits_of(served, 300, is_untrained=True)
    act(served, 300, is_training=False)
    assert passes == [100, 300] * 3  # kept weights, and sampled evaluations, stay here
