"""One update: how the optimizer steps, clips, skips and follows schedules."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from muxrl.servers.algorithms.networks import Encoder
from muxrl.servers.algorithms.settings.model import ModelSettings
from muxrl.servers.algorithms.update import Step, seeded, update_together, value_at


def net(seed: int = 0) -> nn.Linear:
    with seeded(seed):
        return nn.Linear(3, 2)


X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def loss_of(one: nn.Module, factor: float = 1.0) -> torch.Tensor:
    return factor * one(X).square().mean()


def update(step: Step, loss: torch.Tensor) -> str:
    return update_together([(step, loss)])


@pytest.mark.parametrize("clip", [None, 0.1, 1e6])
def test_the_optimizer_steps_as_torchs_adam_also_after_its_state_was_loaded(
    clip: float | None,
) -> None:
    ours, theirs = net(), net()
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    step = Step({"": list(ours.parameters())}, 0.01, clip=clip, eps=1e-5)
    for i in range(4):
        if i == 2:  # a new optimizer loads the state, as after a resumption
            state = step.optimizer.gathered()
            step = Step({"": list(ours.parameters())}, 0.01, clip=clip, eps=1e-5)
            step.optimizer.load(state)
        assert update(step, loss_of(ours)) == ""
        adam.zero_grad()
        loss_of(theirs).backward()
        norm = nn.utils.get_total_norm([p.grad for p in theirs.parameters() if p.grad is not None])
        assert step.norms[""] == pytest.approx(float(norm), rel=1e-5)
        if clip is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        adam.step()
        for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-7)


def test_convolutions_of_images_step_as_by_torchs_adam() -> None:
    """Images have their channels last, so that weights' gradients have another memory layout."""
    with seeded(0):
        ours = Encoder(ModelSettings(), (12, 9, 3))
    theirs, images = copy.deepcopy(ours), torch.rand(4, 12, 9, 3)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, foreach=False)
    step = Step({"": list(ours.parameters())}, 0.01)
    for _ in range(2):
        update(step, ours(images).square().sum())
        adam.zero_grad()
        theirs(images).square().sum().backward()
        adam.step()
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_in_three_ways() -> None:
    def clipped(**how: Any) -> list[torch.Tensor]:
        one = net()
        step = Step({"": list(one.parameters())}, 0.1, clip=0.5, **how)
        update(step, loss_of(one, 100.0))
        return [p.grad for p in one.parameters() if p.grad is not None]

    assert max(float(g.abs().max()) for g in clipped(clip_by="value")) == pytest.approx(0.5)
    assert [float(g.norm()) for g in clipped(clip_by="norm")] == pytest.approx([0.5, 0.5])
    both = clipped(clip_by="global_norm")
    assert math.sqrt(sum(float(g.norm()) ** 2 for g in both)) == pytest.approx(0.5)


@pytest.mark.parametrize("factor", [1e30, math.inf, math.nan])
def test_an_unsound_update_changes_nothing(factor: float) -> None:
    one = net()
    step = Step({"": list(one.parameters())}, 0.1, clip=1.0)
    update(step, loss_of(one))
    before = [p.clone() for p in one.parameters()]
    state = {
        k: {n: v.clone() for n, v in own.items()} for k, own in step.optimizer.gathered().items()
    }
    assert "not finite" in update(step, loss_of(one, factor))
    assert all(map(torch.equal, before, one.parameters()))
    for key, own in step.optimizer.gathered().items():
        assert all(torch.equal(v, own[n]) for n, v in state[key].items())


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    one, other = net(), net(1)
    step = Step({"": [*one.parameters(), *other.parameters()]}, 0.1)
    update(step, loss_of(one) + loss_of(other))
    before = [p.clone() for p in other.parameters()]
    update(step, loss_of(one))
    assert all(map(torch.equal, before, other.parameters()))


@given(st.integers(0, 300))
def test_a_schedule_lies_on_the_lines_between_its_points(at: int) -> None:
    points = [(0, 1.0), (100, 0.5), (200, 2.0)]
    expected = 1.0 - at / 200 if at <= 100 else min(2.0, 0.5 + 1.5 * (at - 100) / 100)
    assert value_at(points, at) == pytest.approx(expected)
    assert value_at(0.25, at) == 0.25
    late = [(100, 1.0), (200, 0.0)]  # callbacks may set a schedule that begins later
    assert value_at(late, at) == pytest.approx(min(1.0, max(0.0, 2.0 - at / 100)))


def test_networks_made_with_a_seed_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(net(3).weight, net(3).weight)
    assert torch.equal(before, torch.get_rng_state())
