from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
)

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.algorithms.ppo import policy_terms


def module_of(distribution: type) -> Any:
    def give() -> type:
        return distribution

    return SimpleNamespace(get_train_action_dist_cls=give, get_exploration_action_dist_cls=give)


def their_terms(distribution: type, inputs: torch.Tensor, batch: dict[str, Any]) -> list[Any]:
    learned = distribution.from_logits(inputs)  # type: ignore[attr-defined]
    acted = distribution.from_logits(batch[Columns.ACTION_DIST_INPUTS])  # type: ignore[attr-defined]
    return [learned.logp(batch[Columns.ACTIONS]), learned.entropy(), acted.kl(learned)]


@given(
    seed=st.integers(0, 1_000),
    num_actions=st.integers(1, 6),
    scale=st.sampled_from([0.0, 1.0, 50.0]),
    masked=st.sampled_from([None, UNAVAILABLE, -np.inf]),
)
def test_terms_and_gradients_of_discrete_actions_are_rllibs(
    seed: int, num_actions: int, scale: float, masked: float | None
) -> None:
    rng = np.random.default_rng(seed)
    shape = (7, num_actions)
    numbers = [torch.from_numpy(scale * rng.normal(size=shape)).float() for _ in range(2)]
    actions = torch.from_numpy(rng.integers(num_actions, size=7))
    if masked is not None:
        forbidden = torch.from_numpy(rng.random(shape) < 0.4)
        forbidden[torch.arange(7), actions] = False
        numbers = [x.masked_fill(forbidden, masked) for x in numbers]
    batch = {Columns.ACTIONS: actions, Columns.ACTION_DIST_INPUTS: numbers[1]}
    mine, theirs = (numbers[0].clone().requires_grad_() for _ in range(2))
    ours = policy_terms(module_of(TorchCategorical), mine, batch, needs_kl=True)
    expected = their_terms(TorchCategorical, theirs, batch)
    are_finite = True
    for our, their in zip(ours, expected, strict=True):
        assert our is not None
        finite = their.isfinite()  # theirs is infinite where a probability is 0 in float32
        torch.testing.assert_close(our[finite], their[finite], rtol=1e-4, atol=1e-4)
        assert our.isfinite().all()
        are_finite &= bool(finite.all())
    if are_finite and masked != -np.inf:  # of which RLlib's gradients are NaN
        sum(term.sum() for term in ours).backward()  # type: ignore[union-attr]
        sum(term.sum() for term in expected).backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("needs_kl", [True, False])
def test_those_of_other_actions_are_their_distributions_own(needs_kl: bool) -> None:
    inputs, old = torch.randn(5, 4), torch.randn(5, 4)
    batch = {Columns.ACTIONS: torch.randn(5, 2), Columns.ACTION_DIST_INPUTS: old}
    ours = policy_terms(module_of(TorchDiagGaussian), inputs, batch, needs_kl=needs_kl)
    theirs = their_terms(TorchDiagGaussian, inputs, batch)
    if not needs_kl:
        theirs[-1] = None
    for our, their in zip(ours, theirs, strict=True):
        assert our is their is None or torch.equal(our, their)
