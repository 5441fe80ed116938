"""Log-probabilities, entropies and draws equal those of torch's own distributions."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from tests.servers.algorithms import playing
from torch import distributions as reference

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.algorithms.distributions import distribution_of, masked, squashed

SPACES = {**playing.SPACES, "discrete": gymnasium.spaces.Discrete(4)}


def theirs(kind: str, inputs: torch.Tensor) -> list[reference.Distribution]:
    """Returns torch's distributions of each part of an action."""
    if kind == "discrete":
        return [reference.Categorical(logits=inputs)]
    if kind == "multi":
        return [reference.Categorical(logits=one) for one in inputs.split([2, 3], -1)]
    means, logs = inputs.chunk(2, -1)
    return [reference.Normal(means[..., i], logs[..., i].exp()) for i in range(2)]


def actions_of(kind: str, num: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    if kind == "discrete":
        return rng.integers(0, 4, num)
    if kind == "multi":
        return np.stack([rng.integers(0, 2, num), rng.integers(0, 3, num)], -1)
    return rng.normal(size=(num, 2)).astype(np.float32)


@pytest.mark.parametrize("kind", SPACES)
def test_log_probabilities_entropies_and_gradients_are_those_of_torchs_distributions(
    kind: str,
) -> None:
    one, generator = distribution_of(SPACES[kind]), torch.Generator().manual_seed(0)
    inputs = torch.randn(7, one.num_inputs, generator=generator).requires_grad_()
    acted = torch.randn(7, one.num_inputs, generator=generator)
    actions = torch.from_numpy(actions_of(kind, 7))
    found = one.terms(inputs, actions, acted)
    parts, old = theirs(kind, inputs), theirs(kind, acted)
    columns = [actions] if kind == "discrete" else list(actions.unbind(-1))
    expected = (
        sum(p.log_prob(a) for p, a in zip(parts, columns, strict=True)),
        sum(p.entropy() for p in parts),
        sum(reference.kl_divergence(o, p) for o, p in zip(old, parts, strict=True)),
    )
    for ours, other in zip(found, expected, strict=True):
        assert isinstance(other, torch.Tensor)
        torch.testing.assert_close(ours, other)
        (mine,) = torch.autograd.grad(ours.sum(), inputs, retain_graph=True)
        (its,) = torch.autograd.grad(other.sum(), inputs, retain_graph=True)
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    as_numpy = one.log_prob(inputs.detach().numpy(), actions.numpy())
    assert as_numpy == pytest.approx(found.log_prob.detach().numpy(), abs=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_draws_follow_the_distribution_and_the_greedy_action_is_its_mode(kind: str) -> None:
    one, rng = distribution_of(SPACES[kind]), np.random.default_rng(0)
    inputs = rng.normal(size=one.num_inputs).astype(np.float32)
    drawn = one.draw(np.tile(inputs, (20_000, 1)), rng)
    parts = theirs(kind, torch.from_numpy(inputs))
    columns = [drawn] if kind == "discrete" else list(drawn.T)
    best = one.best(inputs[None])[0]
    for part, column, mode in zip(parts, columns, np.atleast_1d(best), strict=True):
        if isinstance(part, reference.Categorical):
            share = np.bincount(column, minlength=len(part.probs)) / len(column)
            assert share == pytest.approx(part.probs.numpy(), abs=0.02)
            assert mode == part.probs.argmax()
        else:
            assert column.mean() == pytest.approx(float(part.mean), abs=0.05)
            assert column.std() == pytest.approx(float(part.stddev), rel=0.03)
            assert mode == pytest.approx(float(part.mean))


def test_a_masked_action_has_no_probability_no_entropy_and_no_gradient() -> None:
    one = distribution_of(SPACES["discrete"])
    logits = torch.tensor([[0.1, 5.0, -0.3, 0.2]], requires_grad=True)
    mask = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    inputs = masked(logits, mask)
    terms = one.terms(inputs, torch.tensor([2]), inputs.detach())
    two = reference.Categorical(logits=logits.detach()[:, [0, 2]])
    torch.testing.assert_close(terms.log_prob.detach(), two.log_prob(torch.tensor([1])))
    torch.testing.assert_close(terms.entropy.detach(), two.entropy())
    assert terms.kl is not None
    assert float(terms.kl.detach()) == 0.0
    (terms.log_prob + terms.entropy + terms.kl).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad[0, [1, 3]] == 0).all()
    drawn = one.draw(np.tile(inputs.detach().numpy(), (1_000, 1)), np.random.default_rng(0))
    assert set(drawn.tolist()) == {0, 2}
    assert np.isfinite(UNAVAILABLE)
    alone = masked(logits, torch.tensor([[0.0, 0.0, 1.0, 0.0]])).detach().numpy()
    assert one.log_prob(alone, np.array([2])) == pytest.approx(0.0)


def test_a_squashed_draw_has_the_density_of_torchs_transformed_distribution() -> None:
    inputs = torch.tensor([[0.3, -1.0, -0.5, 0.4], [4.0, -6.0, 0.1, -2.0]])
    noise = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))
    actions, densities = squashed(inputs, noise)
    means, logs = inputs.chunk(2, -1)
    normal = reference.Normal(means, logs.exp())
    its = reference.TransformedDistribution(normal, [reference.TanhTransform(cache_size=1)])
    before = means + logs.exp() * noise
    torch.testing.assert_close(actions, before.tanh())
    expected = normal.log_prob(before) - its.transforms[0].log_abs_det_jacobian(before, actions)
    torch.testing.assert_close(densities, expected.sum(-1))
