"""IMPALA and APPO in place: one update for each batch, and bootstrap values that are kept."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.policy.policy import PolicySpec
from tests.nights import at_night
from tests.servers.scripted_store import masked_space

from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, stack
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.rllib.env_runner import ExternalEnvRunner

OBSERVED = np.ones(2, np.float32)
GAMMA = 0.5


class Seat:
    seat_id = policy_id = "a"
    observation_space: Space = Box((2,), "float32", -1.0, 1.0)
    action_space: Space = Discrete(2)
    allowed: Any = None  # where a mask leaves one


class MaskedSeat(Seat):
    """Action 1 is forbidden."""

    observation_space = masked_space(Seat.observation_space, Seat.action_space)
    seen = {OBS: OBSERVED, ACTION_MASK: np.array([1, 0], np.float32)}
    allowed = 0


class MaskedChoicesSeat(Seat):
    """Of two choices each forbids its first action, and at the end its second."""

    action_space = MultiDiscrete((2, 2))
    observation_space = masked_space(Seat.observation_space, action_space)
    seen = {OBS: OBSERVED, ACTION_MASK: np.array([0, 1, 0, 1], np.float32)}
    last = {OBS: OBSERVED, ACTION_MASK: np.array([1, 0, 1, 0], np.float32)}
    allowed = np.array([1, 1])


pytestmark = pytest.mark.usefixtures("rllib")


def episode(length: int, *, is_terminated: bool, seat: Any = Seat) -> Chunk:
    """Every step has the reward 1; of a masked seat, every action is the allowed one."""
    is_masked = seat.allowed is not None
    seen = getattr(seat, "seen", OBSERVED)
    log_prob = 0.0 if is_masked else np.log(0.5)
    name = f"e{np.random.default_rng().integers(1 << 60)}"
    ends = {"is_terminated": is_terminated, "is_truncated": not is_terminated}
    one = Trajectory(
        f"{name}_a", name, "a", "a",
        observations=stack([seen] * length + [getattr(seat, "last", seen)]),
        actions=np.array([seat.allowed] * length) if is_masked else np.arange(length) % 2,
        rewards=np.ones(length),
        outputs={
            Columns.ACTION_LOGP: np.full(length, log_prob, np.float32),
            Columns.ACTION_DIST_INPUTS: np.zeros((length, 2 * np.size(seat.allowed)), np.float32),
        },
        **ends,
    )  # fmt: skip
    return Chunk(name, 0, [one], [1] * length, **ends)


def build(name: str, seat: Any = Seat, **settings: Any) -> tuple[Any, Feed]:
    config = get_algorithm(name).make_config(
        {
            "gamma": GAMMA,
            "lr": 0.02,
            "entropy_coeff": 1.0,  # holds the policy near the behaviour's, uniform one
            "train_batch_size_per_learner": 20,
            "min_sample_timesteps_per_iteration": 0,
            **settings,
        },
        {"fcnet_hiddens": [8]},
        has_masks=seat.allowed is not None,
    )
    config.environment(env=None)
    config.multi_agent(
        policies={"a": PolicySpec(None, *spaces_of(seat))},
        policy_mapping_fn=lambda *args, **kwargs: "a",
    )
    config.env_runners(env_runner_cls=ExternalEnvRunner, num_env_runners=0)
    algo = config.build_algo()
    feed = Feed(1)
    algo.env_runner.attach(feed, {"a": seat()}, needs_log_probabilities=True)
    return algo, feed


def value_after(algo: Any, feed: Feed, num_updates: int, length: int, is_terminated: bool) -> float:
    for _ in range(num_updates):
        feed.put([episode(length, is_terminated=is_terminated) for _ in range(20 // length)])
        algo.training_step()
    module = algo.learner_group._learner.module["a"]
    with torch.no_grad():
        values = module.compute_values({Columns.OBS: torch.from_numpy(OBSERVED[None])})
    return float(values[0])


VALUES = [
    (1, False, 1.0 / (1.0 - GAMMA)),  # cut at once: there is only the bootstrap to learn
    (4, False, 1.0 / (1.0 - GAMMA)),
    (1, True, 1.0),
    (2, True, float(np.mean([1.0, 1.0 + GAMMA]))),
]
CONSTANTS = [(name, *value) for name in ("IMPALA", "APPO") for value in VALUES]


@pytest.mark.learning
@pytest.mark.parametrize(
    ("name", "length", "is_terminated", "expected"), at_night(CONSTANTS, CONSTANTS[1:-1])
)
def test_values_of_a_constant_reward(
    name: str, length: int, is_terminated: bool, expected: float
) -> None:
    algo, feed = build(name)
    assert value_after(algo, feed, 250, length, is_terminated) == pytest.approx(expected, abs=0.1)
    algo.stop()


@pytest.mark.parametrize(
    ("name", "settings", "num_updates"),
    [("IMPALA", {}, 1), ("APPO", {"circular_buffer_iterations_per_batch": 3}, 3)],
)
def test_a_batch_is_learned_on_arrival_and_its_weights_are_used_at_once(
    name: str, settings: dict[str, Any], num_updates: int
) -> None:
    algo, feed = build(name, **settings)
    runner = algo.env_runner
    for i in range(1, 4):
        feed.put([episode(20, is_terminated=False)])
        algo.training_step()
        assert runner.inference.weights_seq_no == i * num_updates
        assert feed.is_open
        learned = algo.learner_group._learner.module["a"].state_dict()
        for key, weights in runner.module["a"].state_dict().items():
            assert torch.equal(weights, learned[key]), key
    assert not [t for t in threading.enumerate() if "Learner" in t.name]
    algo.stop()


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
@pytest.mark.parametrize("logp", [0.0, 38.0, 42.0, 90.0])
def test_a_cut_is_bootstrapped_however_dense_the_policy_is(
    name: str, logp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many continuous actions make log-probabilities large; none may undo the bootstrap."""
    from ray.rllib.algorithms.appo.torch import appo_torch_learner
    from ray.rllib.algorithms.impala.torch import impala_torch_learner

    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    vtrace = impala_torch_learner.vtrace_torch

    def watched(**inputs: Any) -> Any:
        shifted = {
            key: inputs[key] + (logp if key.startswith("target") else 0.0)
            for key in ("target_action_log_probs", "behaviour_action_log_probs")
        }
        is_real = inputs["discounts"] > 0
        shifted["behaviour_action_log_probs"] = torch.where(
            is_real,
            inputs["behaviour_action_log_probs"] + logp,
            inputs["behaviour_action_log_probs"],
        )
        targets, advantages = vtrace(**{**inputs, **shifted})
        seen.append((inputs["values"].detach(), targets, is_real))
        return targets, advantages

    monkeypatch.setattr(impala_torch_learner, "vtrace_torch", watched)
    monkeypatch.setattr(appo_torch_learner, "vtrace_torch", watched)
    algo, feed = build(name)
    feed.put([episode(4, is_terminated=False) for _ in range(5)])
    algo.training_step()
    values, targets, is_real = seen[0]
    assert torch.isfinite(targets).all()
    assert (~is_real).any()
    # Where the episode was cut, the target is the value itself: what follows is bootstrapped.
    assert torch.equal(targets[~is_real], values[~is_real])
    for parameter in algo.learner_group._learner.module["a"].parameters():
        assert torch.isfinite(parameter).all()
    algo.stop()


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_the_one_allowed_action_is_on_policy_whatever_the_weights(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its probability is 1 under the policy, under APPO's target policy, and when it was taken.

    Without the mask, V-trace would take the data for those of another policy.
    """
    from ray.rllib.algorithms.appo.torch import appo_torch_learner
    from ray.rllib.algorithms.impala.torch import impala_torch_learner

    seen: list[dict[str, torch.Tensor]] = []
    vtrace = impala_torch_learner.vtrace_torch

    def watched(**inputs: Any) -> Any:
        targets, advantages = vtrace(**inputs)
        seen.append({**inputs, "targets": targets})
        return targets, advantages

    monkeypatch.setattr(impala_torch_learner, "vtrace_torch", watched)
    monkeypatch.setattr(appo_torch_learner, "vtrace_torch", watched)
    algo, feed = build(name, MaskedSeat)
    module = algo.learner_group._learner.module["a"]
    with torch.no_grad():  # the forbidden action looks best
        module.pi.net.mlp[-1].bias[1] += 20.0
    before = {key: value.clone() for key, value in module.state_dict().items() if "pi." in key}
    for _ in range(2):
        feed.put([episode(4, is_terminated=True, seat=MaskedSeat) for _ in range(5)])
        algo.training_step()
    for inputs in seen:
        # Five episodes of four steps, each with the step that RLlib appends; padding follows.
        behaviour, target, values = (
            inputs[key].flatten()[:25].view(5, 5)[:, :4]
            for key in ("behaviour_action_log_probs", "target_action_log_probs", "targets")
        )
        assert (behaviour == 0.0).all()
        assert (target == 0.0).all()
        returns = torch.tensor([1.875, 1.75, 1.5, 1.0])  # 1 + GAMMA * what follows
        torch.testing.assert_close(values, returns.expand(5, 4))
    assert seen
    after = module.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
    algo.stop()


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_an_appended_step_whose_action_several_masks_forbid_spoils_no_update(name: str) -> None:
    """It repeats the last action; twice the lowest float is -inf, and no number times 0."""
    algo, feed = build(name, MaskedChoicesSeat)
    module = algo.learner_group._learner.module["a"]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    feed.put([episode(4, is_terminated=False, seat=MaskedChoicesSeat) for _ in range(5)])
    algo.training_step()
    changed = {key for key, value in module.state_dict().items() if not value.equal(before[key])}
    assert any(key.startswith("vf.") for key in changed), "what is not finite is skipped"
    algo.stop()
