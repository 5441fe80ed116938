"""Sampling follows the policy's distribution; new weights change places with the old."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from muxrl.protocol.spaces import Discrete
from muxrl.servers.agents.seats import SeatAction, SeatRequest
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.rllib import on_gpu
from muxrl.servers.rllib.inference import Inference

OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)


def inference(
    policies: tuple[str, ...] = ("p",), *, on_gpu: bool = False, **model: Any
) -> Inference:
    config = get_algorithm("PPO").make_config({}, model)
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = OBSERVATIONS, ACTIONS
    spec.inference_only, spec.model_config = True, config.model_config
    build = MultiRLModuleSpec(rl_module_specs=dict.fromkeys(policies, spec)).build
    return Inference(build, seed=0, on_gpu=on_gpu)


def step(
    num: int,
    should_explore: bool = True,
    logged: int | None = None,
    module_state: Any = None,
    policy_id: str = "p",
    untrained: frozenset[str] = frozenset(),
    is_training: bool = True,
) -> Any:
    seat = SimpleNamespace(policy_id=policy_id, seat_id="a", action_space=Discrete(3))
    observation = np.array([0.5, -0.5, 0.1, 0.9], np.float32)
    requests = [SeatRequest(seat, observation, module_state, logged) for _ in range(num)]  # type: ignore[arg-type]
    return SimpleNamespace(
        requests=requests,
        should_explore=should_explore,
        is_training=is_training,
        untrained=untrained,
    )


def act(served: Inference, *steps: Any) -> list[list[SeatAction]]:
    return served.act(steps)[0]


@pytest.mark.parametrize("num_steps", [1, 100], ids=["in torch", "in numpy"])
def test_actions_are_drawn_from_the_distribution_that_is_recorded(
    num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one, all goes through numpy
    served = inference()
    chosen = []
    for _ in range(num_steps):  # 40 rows go through numpy, 4,000 through torch
        chosen += act(served, step(4000 // num_steps))[0]
    logits = chosen[0].extra_outputs[Columns.ACTION_DIST_INPUTS]
    expected = np.exp(logits) / np.exp(logits).sum()
    actions = np.array([one.action for one in chosen])
    drawn = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(drawn, expected, atol=0.04)
    for one in chosen[:50]:
        logp = one.extra_outputs[Columns.ACTION_LOGP]
        assert logp == pytest.approx(np.log(expected[one.action]), abs=1e-4)


def test_greedy_takes_the_likeliest_and_logged_actions_stand() -> None:
    greedy, logged = act(inference(), step(3, should_explore=False), step(2, logged=2))
    assert (len(greedy), len(logged)) == (3, 2)
    assert greedy[0].action == greedy[0].extra_outputs[Columns.ACTION_DIST_INPUTS].argmax()
    for one in logged:  # the policy did not choose it: its own probability is beside the point
        assert one.action == 2
        assert np.isposinf(one.extra_outputs[Columns.ACTION_LOGP])


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


def test_loading_changes_the_copy_in_use_and_its_version() -> None:
    served, other = inference(), inference()
    ((before,),), version = served.act([step(1, should_explore=False)])
    assert version == 0
    served.load(other.modules.get_state(), 7)
    ((after,),), version = served.act([step(1, should_explore=False)])
    assert version == 7
    ((expected,),) = act(other, step(1, should_explore=False))
    inputs = [one.extra_outputs[Columns.ACTION_DIST_INPUTS] for one in (before, after, expected)]
    np.testing.assert_array_equal(inputs[1], inputs[2])
    assert (inputs[0] != inputs[1]).any()


def test_a_recurrent_policy_carries_its_state_from_step_to_step() -> None:
    served = inference(use_lstm=True)
    assert served.is_stateful
    ((first,),) = act(served, step(1, should_explore=False))
    ((again,),) = act(served, step(1, should_explore=False))
    ((second,),) = act(served, step(1, should_explore=False, module_state=first.module_state))
    assert Columns.STATE_OUT in second.extra_outputs
    flat = [
        np.concatenate([np.ravel(leaf) for leaf in _leaves(one.module_state)])
        for one in (first, again, second)
    ]
    np.testing.assert_array_equal(flat[0], flat[1])  # a pass keeps nothing to itself
    assert (flat[0] != flat[2]).any()


def test_a_policy_that_raises_keeps_nobody_elses_recurrent_state() -> None:
    served = inference(use_lstm=True, policies=("p", "q"))
    broken = served.modules["q"]
    both = [step(1, should_explore=False, policy_id=name) for name in ("p", "q")]
    forward, broken.forward_inference = broken.forward_inference, None
    with pytest.raises(TypeError):
        served.act(both)
    broken.forward_inference = forward
    again = [(one.action, _leaves(one.module_state)) for (one,) in act(served, *both)]
    fresh = inference(use_lstm=True, policies=("p", "q"))
    fresh.load(served.modules.get_state(), 0)
    expected = [(one.action, _leaves(one.module_state)) for (one,) in act(fresh, *both)]
    np.testing.assert_equal(again, expected)


def _leaves(state: Any) -> list[np.ndarray]:
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in _leaves(value)]
    return [state]


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

    def logits(of: Inference, num: int, untrained: frozenset[str] = frozenset()) -> Any:
        chosen = act(of, step(num, should_explore=False, untrained=untrained))[0]
        return chosen[0].extra_outputs[Columns.ACTION_DIST_INPUTS]

    for seq_no in range(1, 4):
        state = plain.modules.get_state()
        for name, weight in state["p"].items():
            state["p"][name] = weight + np.float32(0.25)
        plain.load(state, seq_no)
        served.load(state, seq_no)
        for num in (99, 100, 300):
            np.testing.assert_allclose(logits(served, num), logits(plain, num), rtol=1e-5)
        served.load(state, seq_no)  # as many loads between two passes as there are copies
    assert passes == [100, 300] * 3
    logits(served, 300, frozenset({"a"}))
    act(served, step(300, is_training=False))
    assert passes == [100, 300] * 3  # kept weights, and sampled evaluations, stay here
