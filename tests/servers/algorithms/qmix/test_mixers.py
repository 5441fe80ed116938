from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.algorithms.qmix.pieces import spec_of

from muxrl.servers.algorithms.qmix.mixers import Mixer, make_mixer
from muxrl.servers.algorithms.settings.teams import QMIXSettings


def small_mixer(name: Any, num_members: int, state_dim: int, **settings: Any) -> Mixer:
    sizes = {"mixing_embed_dim": 8, "hypernet_embed": 16, "adv_hypernet_embed": 8, "num_kernel": 3}
    own = QMIXSettings(mixer=name, **(sizes | settings))
    return make_mixer(own, spec_of(num_members, state_size=state_dim))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 5),
    state_dim=st.integers(1, 6),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_qmix_is_monotone_in_every_members_value(
    n: int, state_dim: int, seed: int, scale: float
) -> None:
    torch.manual_seed(seed)
    mixer = small_mixer("qmix", n, state_dim)
    q = (torch.randn(7, n) * scale).requires_grad_()
    state = torch.randn(7, state_dim) * scale

    q_tot = mixer(q, state, torch.ones(7, n))
    (slope,) = torch.autograd.grad(q_tot.sum(), q)

    assert q_tot.shape == (7, 1)
    assert (slope >= 0).all()
    assert (slope > 0).any()


@pytest.mark.parametrize("name", ["qmix", "qplex"])
@pytest.mark.parametrize("bound_state", [True, False])
def test_only_large_states_are_scaled_down(name: str, bound_state: bool) -> None:
    mixer: Any = small_mixer(name, 2, 4, bound_state=bound_state)
    q, alive = torch.randn(4, 2), torch.ones(4, 2)
    more = (q + 1.0, torch.randint(4, (4, 2))) if name == "qplex" else ()
    state = torch.randn(4, 4)
    state /= state.square().mean(-1, keepdim=True).sqrt()  # of root mean square 1
    one, fifty = (mixer(q, s, alive, *more) for s in (state, 50.0 * state))
    assert torch.allclose(one, fifty) == bound_state
    assert not torch.allclose(mixer(q, 0.5 * state, alive, *more), one)
