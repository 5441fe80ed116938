"""The lean step against torch's, bit for bit."""

import torch

from muxrl.servers.algorithms.fused_adam import FusedAdam


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(n, 3, generator=generator)) for n in (4, 1, 2)]


def test_it_steps_as_torchs_does_also_after_its_state_was_loaded_and_without_a_gradient() -> None:
    ours, theirs = parameters(), parameters()
    mine = FusedAdam(ours, eps=1e-5)
    other = torch.optim.Adam(theirs, eps=1e-5, fused=True)
    generator = torch.Generator().manual_seed(1)
    for number in range(12):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            two.grad = one.grad.clone()
        if number < 4:  # the last has its first gradient late
            ours[-1].grad = theirs[-1].grad = None
        for optimizer in (mine, other):
            optimizer.param_groups[0]["lr"] = 0.01 * (number + 1)
            optimizer.step()
        if number == 8:
            state, mine = mine.state_dict(), FusedAdam(ours)
            mine.load_state_dict(state)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.equal(one, two)
    assert mine.state_dict()["state"].keys() == other.state_dict()["state"].keys()
