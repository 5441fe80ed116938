"""DQN's and SAC's losses under action masks, against loops over the allowed actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.sac import sac_learner as sac
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import POLICY_LOSS_KEY
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.policy.policy import PolicySpec
from tests.servers.scripted_store import masked_space
from torch import Tensor

from muxrl.protocol.spaces import from_gymnasium
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.rllib.numpy_values import numpy_values

SEES = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTS = spaces.Discrete(4)
MASKED = to_gymnasium(masked_space(from_gymnasium(SEES), from_gymnasium(ACTS)))
ROWS = 6
GAMMA = 0.5
ALPHA = 3.0


def make_learner(name: str, space: spaces.Space = MASKED, **settings: Any) -> Any:
    """Returns a learner whose target network differs from the other one."""
    config = get_algorithm(name).make_config(
        {"gamma": GAMMA, **settings}, {"fcnet_hiddens": [8]}, has_masks=True
    )
    config.multi_agent(
        policies={"p": PolicySpec(None, space, ACTS)},
        policy_mapping_fn=lambda *args, **kwargs: "p",
    )
    learner = config.build_learner(spaces={"p": (space, ACTS)})
    with torch.no_grad():
        for _, parameter in sorted(learner.module["p"].named_parameters()):
            parameter += 0.5 * torch.randn_like(parameter)
    return learner


def some_masks() -> Tensor:
    """One action at least is allowed in every row, and one at least is not."""
    masks = (torch.rand(ROWS, 4) < 0.5).float()
    masks[:, 0], masks[:, 3] = 1.0, 0.0
    masks[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    return masks


def make_batch(masks: Tensor, next_masks: Tensor) -> dict[str, Any]:
    """Row 1 has terminated; row 2 is of two steps."""
    return {
        Columns.OBS: {OBS: torch.randn(ROWS, 3), ACTION_MASK: masks},
        Columns.NEXT_OBS: {OBS: torch.randn(ROWS, 3), ACTION_MASK: next_masks},
        Columns.ACTIONS: masks.argmax(-1),
        Columns.REWARDS: torch.randn(ROWS),
        Columns.TERMINATEDS: torch.arange(ROWS) == 1,
        "n_step": torch.where(torch.arange(ROWS) == 2, 2, 1),
        "weights": torch.ones(ROWS),
    }


def without_masks(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value[OBS] if key in (Columns.OBS, Columns.NEXT_OBS) else value
        for key, value in batch.items()
    }


def loss_of(learner: Any, batch: dict[str, Any]) -> Tensor:
    return learner.compute_loss_for_module(
        module_id="p",
        config=learner.config.get_config_for_module("p"),
        batch=batch,
        fwd_out=learner.module["p"].forward_train(batch),
    )


def allowed(batch: dict[str, Any], row: int, column: str = Columns.OBS) -> list[int]:
    return batch[column][ACTION_MASK][row].nonzero().flatten().tolist()


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double_q", [False, True])
def test_dqn_bootstraps_from_the_best_allowed_action(double_q: bool, dueling: bool) -> None:
    learner = make_learner("DQN", double_q=double_q, dueling=dueling, td_error_loss_fn="mse")
    module = learner.module["p"]
    plain = DefaultDQNTorchRLModule  # whose values are not masked

    def values(obs: Tensor, prefix: str = "") -> Tensor:
        encoder, af = getattr(module, f"{prefix}encoder"), getattr(module, f"{prefix}af")
        head = {"af": af, "vf": getattr(module, f"{prefix}vf")} if dueling else af
        with torch.no_grad():
            outputs: dict[str, Tensor] = plain._qf_forward_helper(
                module, {Columns.OBS: obs}, encoder, head
            )
        return outputs["qf_preds"]

    batch = make_batch(some_masks(), torch.ones(ROWS, 4))
    following = batch[Columns.NEXT_OBS][OBS]
    judged = values(following) if double_q else values(following, "_target_")
    # What looks best is forbidden.
    batch[Columns.NEXT_OBS][ACTION_MASK].scatter_(1, judged.argmax(-1, keepdim=True), 0.0)
    target_values = values(following, "_target_")
    errors, unmasked_errors = [], []
    for row in range(ROWS):
        best = max(
            allowed(batch, row, Columns.NEXT_OBS), key=lambda action, i=row: judged[i, action]
        )
        taken = values(batch[Columns.OBS][OBS])[row, batch[Columns.ACTIONS][row]]
        for found, action in ((errors, best), (unmasked_errors, int(judged[row].argmax()))):
            discount = 0.0 if row == 1 else GAMMA ** (2 if row == 2 else 1)
            target = batch[Columns.REWARDS][row] + discount * target_values[row, action]
            found.append(float(taken - target) ** 2)
    loss = loss_of(learner, batch)
    assert loss.item() == pytest.approx(np.mean(errors), rel=1e-5)
    assert loss.item() != pytest.approx(np.mean(unmasked_errors), rel=1e-2)
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in module.parameters())


def test_dqns_atoms_are_those_of_the_best_allowed_action() -> None:
    """With a forbidden one's, far above the others, the loss would be another."""
    learner = make_learner("DQN", num_atoms=5, v_min=-2.0, v_max=2.0, dueling=False)
    only_first = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(ROWS, 4)
    batch = make_batch(some_masks(), only_first)
    bias = learner.module["p"]._target_af.net.mlp[-1].bias
    with torch.no_grad():
        before = loss_of(learner, batch)
        bias.view(4, 5)[3, -1] += 100.0  # action 3 is surely worth most
        assert float(loss_of(learner, batch)) == pytest.approx(float(before), rel=1e-6)
        batch[Columns.NEXT_OBS][ACTION_MASK] = torch.ones(ROWS, 4)
        assert float(loss_of(learner, batch)) != pytest.approx(float(before), rel=1e-2)


def test_epsilon_greedy_draws_allowed_actions_only_and_all_of_them() -> None:
    learner = make_learner("DQN", epsilon=1.0)
    masks = torch.tensor([[0.0, 1.0, 1.0, 0.0]]).expand(500, 4)
    batch = {Columns.OBS: {OBS: torch.randn(500, 3), ACTION_MASK: masks}}
    drawn = learner.module["p"].forward_exploration(batch, t=0)[Columns.ACTIONS]
    assert set(drawn.tolist()) == {1, 2}
    assert float((drawn == 1).float().mean()) == pytest.approx(0.5, abs=0.1)


def test_dqn_acts_on_the_best_allowed_action() -> None:
    learner = make_learner("DQN")
    module = learner.module["p"]
    batch = make_batch(some_masks(), some_masks())
    unmasked = {Columns.OBS: batch[Columns.OBS][OBS]}
    raw = DefaultDQNTorchRLModule.compute_q_values(module, unmasked)["qf_preds"]
    chosen = module.forward_inference(batch)[Columns.ACTIONS].tolist()
    expected = [
        max(allowed(batch, row), key=lambda action, i=row: raw[i, action]) for row in range(ROWS)
    ]
    assert chosen == expected
    assert chosen != raw.argmax(-1).tolist()


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
def test_sacs_losses_are_sums_over_allowed_actions(is_far: bool) -> None:
    """Also where the logits and values of forbidden actions are far above the others."""
    learner = make_learner("SAC", initial_alpha=ALPHA, target_entropy=0.7)
    module = learner.module["p"]
    if is_far:
        with torch.no_grad():
            for head in (module.pi, module.qf, module.qf_twin, module.target_qf):
                head.net.mlp[-1].bias[3] += 200.0
    masks, next_masks = some_masks(), some_masks()
    batch = make_batch(masks, next_masks)
    total = loss_of(learner, batch)
    losses = {key: loss.item() for (_, key), loss in learner._temp_losses.items()}

    current, following = ({Columns.OBS: batch[c][OBS]} for c in (Columns.OBS, Columns.NEXT_OBS))
    with torch.no_grad():
        logits, next_logits = (
            DefaultSACTorchRLModule._forward_inference(module, part)[Columns.ACTION_DIST_INPUTS]
            for part in (current, following)
        )
        q, twin = (
            module._qf_forward_train_helper(current, encoder, head, squeeze=False)
            for encoder, head in (
                (module.qf_encoder, module.qf),
                (module.qf_twin_encoder, module.qf_twin),
            )
        )
        target_q = module.forward_target(following, squeeze=False)
    policy, critic, alpha_terms = [], [], []
    for row in range(ROWS):
        here, there = allowed(batch, row), allowed(batch, row, Columns.NEXT_OBS)
        log_probs = torch.log_softmax(logits[row, here], -1).tolist()
        probs = np.exp(log_probs)
        worth = torch.min(q, twin)[row, here].tolist()
        terms = list(zip(probs, log_probs, worth, strict=True))
        policy.append(sum(p * (ALPHA * log_p - w) for p, log_p, w in terms))
        alpha_terms.append(sum(p * log_p for p, log_p, _ in terms) + 0.7)
        next_log_probs = torch.log_softmax(next_logits[row, there], -1).tolist()
        value = sum(
            np.exp(lp) * (w - ALPHA * lp)
            for lp, w in zip(next_log_probs, target_q[row, there].tolist(), strict=True)
        )
        discount = 0.0 if row == 1 else GAMMA ** (2 if row == 2 else 1)
        taken, reward = q[row, batch[Columns.ACTIONS][row]], batch[Columns.REWARDS][row]
        error = abs(float(taken - reward) - discount * value)
        critic.append(0.5 * error**2 if error < 1 else error - 0.5)
    assert losses[POLICY_LOSS_KEY] == pytest.approx(np.mean(policy), rel=1e-4, abs=1e-5)
    assert losses[sac.QF_LOSS_KEY] == pytest.approx(np.mean(critic), rel=1e-4)
    assert losses["alpha_loss"] == pytest.approx(
        -np.log(ALPHA) * np.mean(alpha_terms), rel=1e-4, abs=1e-5
    )
    total.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in module.parameters())
    grad = module.pi.net.mlp[-1].bias.grad
    assert grad is not None
    assert float(grad[3]) == 0.0  # action 3 is never allowed
    assert float(grad[0]) != 0.0


@pytest.mark.parametrize("has_masks", [True, False])
@pytest.mark.parametrize("twin_q", [True, False])
def test_sac_learns_where_a_probability_underflows(twin_q: bool, has_masks: bool) -> None:
    """With or without masks, of one critic or two, by RLlib's rule for moderate logits."""
    learner = make_learner("SAC", MASKED if has_masks else SEES, twin_q=twin_q)
    module = learner.module["p"]
    with torch.no_grad():
        module.pi.net.mlp[-1].bias[1] += 120.0
    batch = make_batch(torch.ones(ROWS, 4), torch.ones(ROWS, 4))
    batch = batch if has_masks else without_masks(batch)
    total = loss_of(learner, batch)
    probs = module.forward_train(batch)[sac.ACTION_PROBS]
    assert (probs == 0).any()
    total.backward()
    losses = [loss.item() for (_, key), loss in learner._temp_losses.items()]
    assert len(losses) == (4 if twin_q else 3)
    assert np.isfinite(losses).all()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert module.qf.net.mlp[-1].bias.grad.abs().sum() > 0


@pytest.mark.parametrize("has_masks", [True, False])
def test_sacs_auto_entropy_is_a_share_of_what_the_available_actions_allow(has_masks: bool) -> None:
    """Closed form: 0.3 log n, in the mean over the batch of n available ones; alpha follows it."""
    learner = make_learner("SAC", MASKED if has_masks else SEES, initial_alpha=ALPHA)
    masks = some_masks()
    batch = make_batch(masks, some_masks())
    batch = batch if has_masks else without_masks(batch)
    loss_of(learner, batch)
    expected = 0.3 * np.log(4) if not has_masks else 0.3 * np.log(masks.sum(-1).numpy()).mean()
    assert float(learner.target_entropy["p"]) == pytest.approx(expected, rel=1e-5)
    outputs = learner.module["p"].forward_train(batch)
    entropy = -(outputs[sac.ACTION_PROBS] * outputs[sac.ACTION_LOG_PROBS]).sum(-1).mean()
    alpha_loss = learner._temp_losses[("p", "alpha_loss")].item()
    assert alpha_loss == pytest.approx(
        np.log(ALPHA) * (entropy.item() - expected), rel=1e-4, abs=1e-6
    )


@pytest.mark.parametrize(("setting", "target"), [(0.7, 0.7), (None, -1.0)])
def test_sacs_target_entropy_may_be_a_number_or_rllibs_rule(setting: Any, target: float) -> None:
    learner = make_learner("SAC", target_entropy=setting)
    loss_of(learner, make_batch(some_masks(), some_masks()))
    assert float(learner.target_entropy["p"]) == pytest.approx(target)


@pytest.mark.parametrize(
    ("name", "rllibs"), [("DQN", DefaultDQNTorchRLModule), ("SAC", DefaultSACTorchRLModule)]
)
def test_with_all_actions_allowed_it_equals_rllibs_module(name: str, rllibs: type) -> None:
    learner = make_learner(name)
    module = learner.module["p"]
    plain: RLModule = rllibs(
        observation_space=SEES,
        action_space=ACTS,
        inference_only=False,
        model_config=module.model_config,
    )
    plain.make_target_networks()
    plain.load_state_dict(module.state_dict())
    batch = make_batch(torch.ones(ROWS, 4), torch.ones(ROWS, 4))
    got = module.forward_train(batch)
    expected = plain.forward_train(without_masks(batch))
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value)
    without = make_learner(name, SEES)
    without.module["p"].load_state_dict(module.state_dict())
    for key, value in without.module["p"].forward_train(without_masks(batch)).items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("has_masks", [True, False])
def test_dqn_draws_actions_of_value_0_as_any_other(has_masks: bool) -> None:
    """Also where all available ones have it, at which RLlib's epsilon-greedy raises."""
    module = make_learner("DQN", MASKED if has_masks else SEES, epsilon=1.0).module["p"]
    num = 400
    seen: Any = torch.zeros(num, 3)
    if has_masks:
        seen = {OBS: seen, ACTION_MASK: torch.tensor([[0.0, 1.0, 1.0, 0.0]]).expand(num, 4)}
    for biases in ([0.0, 0.0, 0.0, 0.0], [9.0, 0.0, -1.0, 9.0]):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
            module.af.net.mlp[0].bias += torch.tensor(biases)
        drawn = module.forward_exploration({Columns.OBS: seen}, t=0)[Columns.ACTIONS]
        counts = torch.bincount(drawn, minlength=4).tolist()
        expected = num / (2 if has_masks else 4)
        for action, count in enumerate(counts):
            is_available = not has_masks or action in (1, 2)
            # Five deviations of a binomial count at most.
            assert abs(count - is_available * expected) <= 50 * is_available


@pytest.mark.parametrize("is_dueling", [False, True])
def test_values_in_numpy_are_those_of_the_module(is_dueling: bool) -> None:
    module = make_learner("DQN", dueling=is_dueling).module["p"].unwrapped()
    obs = {OBS: torch.randn(ROWS, 3), ACTION_MASK: some_masks()}
    with torch.no_grad():
        expected = module.compute_q_values({Columns.OBS: obs})[QF_PREDS].numpy()
    values = numpy_values(module)
    assert values is not None
    found = values({key: rows.numpy() for key, rows in obs.items()})
    assert (np.isneginf(found) == (obs[ACTION_MASK].numpy() == 0)).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
