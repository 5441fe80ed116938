"""QPLEX's mixer: its formulas, what holds for any weights, and where its gradient goes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.algorithms.qmix.pieces import spec_of
from torch import Tensor
from torch.nn import functional

from muxrl.servers.algorithms.qmix.mixers import DuplexMixer, ParallelMLP, bounded
from muxrl.servers.algorithms.settings.teams import QPLEXSettings


def make(
    num_members: int = 2, num_actions: int = 3, state_dim: int = 4, **changed: Any
) -> DuplexMixer:
    sizes = {"num_kernel": 3, "adv_hypernet_layers": 3, "adv_hypernet_embed": 8}
    own = QPLEXSettings(hypernet_embed=16, **{**sizes, **changed})
    spec = spec_of(num_members, num_actions=num_actions, state_size=state_dim)
    return DuplexMixer(own, spec).double()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def mixed(
    mixer: DuplexMixer, values: Tensor, available: Tensor, alive: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns Q_tot ``[joint actions]`` of every joint action ``[joint actions, n]`` of one
    team."""
    n, k = values.shape
    joint = torch.cartesian_prod(*[torch.arange(k)] * n).view(-1, n)
    joint = joint[available[torch.arange(n), joint].all(-1)]
    best = values.masked_fill(~available, -torch.inf).amax(-1)
    rows = len(joint)
    q_tot = mixer(
        values[torch.arange(n), joint],
        state.expand(rows, -1),
        alive.expand(rows, -1),
        best.expand(rows, -1),
        joint,
    )
    return q_tot.squeeze(-1), joint


@settings(max_examples=60)
@given(
    n=st.integers(1, 3),
    k=st.integers(1, 4),
    layers=st.integers(1, 3),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.1, 1.0]),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_the_best_joint_action_is_each_members_own_best(
    n: int, k: int, layers: int, seed: int, spread: float, scale: float
) -> None:
    """QPLEX keeps IGM for any weights, states, values and masks, whichever members are absent."""
    torch.manual_seed(seed)
    mixer = make(n, k, 4, adv_hypernet_layers=layers)
    for parameter in mixer.parameters():
        parameter.data += spread * torch.randn_like(parameter)
    values, state = scale * drawn(n, k), scale * drawn(4)
    available = torch.rand(n, k) < 0.6
    available[:, 0] = True
    alive = (torch.rand(n) < 0.7).double()

    with torch.no_grad():
        q_tot, joint = mixed(mixer, values, available, alive, state)

    best = values.masked_fill(~available, -torch.inf).argmax(-1)
    is_greedy = ((joint == best) | (alive == 0)).all(-1)
    tolerance = 1e-9 * (1.0 + float(q_tot.abs().max()))
    highest = q_tot[is_greedy]
    assert highest.max() - highest.min() <= tolerance
    assert (q_tot <= highest.max() + tolerance).all()
    # No other joint action is as good: w and lambda are above 0.
    q, greedy_q = values[torch.arange(n), joint], values[torch.arange(n), best]
    importance = mixer.importance(state.expand(len(joint), -1), joint, alive.expand(len(joint), -1))
    assert (importance >= 0).all()
    if scale <= 1.0:  # with larger states a sigmoid may be too small for a float
        assert (importance > 0).all()
    assert ((((q - greedy_q) * alive) < 0).any(-1) == ~is_greedy).all()


def test_qplex_matches_the_papers_formulas() -> None:
    """The mixer computes section 3.2 of the paper; here head by head, as in PyMARL."""
    n, k, num_states = 2, 3, 5
    mixer = make(n, k, 4, bound_state=False)
    q, best, state = drawn(num_states, n), drawn(num_states, n), drawn(num_states, 4)
    actions = torch.randint(k, (num_states, n))
    hidden_w, hidden_b = torch.relu(mixer.from_state(state)).chunk(2, -1)
    w, b = mixer.weight(hidden_w).abs() + 1e-10, mixer.bias(hidden_b)

    def of_head(network: ParallelMLP, head: int, x: Tensor) -> Tensor:
        layers = list(zip(network.weights, network.biases, strict=True))
        for weight, bias in layers[:-1]:
            x = functional.relu(functional.linear(x, weight[head].T, bias[head, 0]))
        weight, bias = layers[-1]
        return functional.linear(x, weight[head].T, bias[head, 0])

    one_hot = functional.one_hot(actions, k).flatten(1).double()
    joint = torch.cat([state, one_hot], -1)
    weights = mixer.importance
    importance = sum(
        (of_head(weights.key, head, state).abs() + 1e-10)
        * torch.sigmoid(of_head(weights.agents, head, state))
        * torch.sigmoid(of_head(weights.actions, head, joint))
        for head in range(3)
    )
    value, advantage = w * best + b, (w * q + b) - (w * best + b)
    expected = (value + importance * advantage).sum(-1, keepdim=True)
    got = mixer(q, state, torch.ones(num_states, n), best, actions)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("absent", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_absent_members_contribute_nothing(absent: tuple[int, ...]) -> None:
    mixer = make(3)
    state, alive = drawn(1, 4), torch.ones(1, 3).double()
    q, best, actions = drawn(1, 3), drawn(1, 3), torch.tensor([[0, 1, 2]])
    alive[0, list(absent)] = 0.0
    one = mixer(q, state, alive, best, actions)
    q[0, list(absent)], best[0, list(absent)], actions[0, list(absent)] = 5.0, 7.0, 1
    assert torch.equal(mixer(q, state, alive, best, actions), one)
    if len(absent) == 3:
        assert one.item() == 0.0
    # Not even their bias contributes: Q_tot is the sum over the other members.
    members = [a for a in range(3) if a not in absent]
    hidden_w, hidden_b = torch.relu(
        mixer.from_state(state / max(1.0, float(state.square().mean().sqrt())))
    ).chunk(2, -1)
    own = (mixer.weight(hidden_w).abs() * best + mixer.bias(hidden_b))[0, members].sum()
    assert mixer(best, state, alive, best, actions).item() == pytest.approx(own.item())


def test_the_gradient_passes_the_members_values_and_not_their_advantages() -> None:
    mixer = make()
    q = drawn(6, 2).requires_grad_()
    best = (q.detach() + torch.rand(6, 2)).requires_grad_()
    state, actions = drawn(6, 4), torch.randint(3, (6, 2))
    q_tot = mixer(q, state, torch.ones(6, 2), best, actions)
    q_tot.sum().backward()
    assert best.grad is None
    assert q.grad is not None
    hidden, _ = torch.relu(mixer.from_state(bounded(state))).chunk(2, -1)
    torch.testing.assert_close(q.grad, mixer.weight(hidden).abs() + 1e-10)


def test_networks_side_by_side_begin_as_linear_layers_do_and_differ() -> None:
    network = ParallelMLP(50, (9, 4, 2))
    for weight, bias, inputs in zip(network.weights, network.biases, (9, 4), strict=True):
        for parameter in (weight, bias):
            assert 0.9 * inputs**-0.5 < parameter.abs().max() <= inputs**-0.5
    out = network(torch.randn(1, 9))[:, 0]
    assert out.shape == (50, 2)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(out))
