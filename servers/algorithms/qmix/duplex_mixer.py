"""QPLEX's mixer, duplex dueling: Wang et al. 2021, ICLR (arXiv 2008.01062), section 3.

A team's value is dueling in two places. Each member's value becomes a value and an advantage, and
so does the team's; the advantages of all alone decide which joint action is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from muxrl.servers.algorithms.qmix.state_bound import bounded

_POSITIVE = 1e-10
"""What PyMARL adds to absolute values, so that no weight is exactly 0 and cuts a member off."""


class DuplexMixer(nn.Module):
    """Q_tot of any joint action, with the members' greedy actions on top.

    With a member's value `q_a`, and `best_a` the highest among its available actions::

        Q_a   = w_a(s) q_a + b_a(s),  w_a > 0                         the transformation
        V_a   = w_a(s) best_a + b_a(s),  A_a = Q_a - V_a <= 0         dueling, for each member
        Q_tot = sum_a V_a + sum_a lambda_a(s, u) A_a,  lambda_a > 0   dueling, for the team

    An advantage is 0 for a member's greedy action and below 0 for the others, whatever lambda is,
    so the members' greedy actions are the team's ("individual-global-max", IGM). Lambda sees the
    joint action u, and is free to give all other joint actions any lower value. So QPLEX can
    represent any table of payoffs, where QMIX is left with monotonic ones. With lambda = 1 it is a
    weighted VDN.

    As in PyMARL's ``dmaq_general``, no gradient passes through the advantages: lambda learns from
    them, and the members' values from ``sum_a Q_a``.

    Absent members count as exactly 0, biases included, and lambda does not see their actions.

    Args:
        num_members: n.
        num_actions: k, of one member.
        state_dim: length of the state.
        hypernet_embed: hidden units of the networks that make w and b.
        num_kernel: heads that lambda is a sum of; see `ImportanceWeights`.
        adv_hypernet_layers: layers of the heads' networks.
        adv_hypernet_embed: units of their hidden layers.
        bound_state: whether `bounded` scales the state.
    """

    mixes_advantages: ClassVar[bool] = True

    def __init__(
        self,
        num_members: int,
        num_actions: int,
        state_dim: int,
        hypernet_embed: int,
        *,
        num_kernel: int,
        adv_hypernet_layers: int,
        adv_hypernet_embed: int,
        bound_state: bool = True,
    ) -> None:
        super().__init__()
        self.bound_state = bound_state
        # The first layers of both hypernetworks read the same: one product.
        self.from_state = nn.Linear(state_dim, 2 * hypernet_embed)
        self.weight = nn.Linear(hypernet_embed, num_members)
        self.bias = nn.Linear(hypernet_embed, num_members)
        self.importance = ImportanceWeights(
            num_members,
            num_actions,
            state_dim,
            num_heads=num_kernel,
            hidden_dims=[adv_hypernet_embed] * (adv_hypernet_layers - 1),
        )

    def forward(
        self, q: Tensor, state: Tensor, alive: Tensor, best: Tensor, actions: Tensor
    ) -> Tensor:
        """The team's value ``[..., 1]`` of a joint action.

        Args:
            q: ``[..., n]``, the values of the members' actions.
            state: ``[..., state_dim]``.
            alive: ``[..., n]``, 0 for absent members.
            best: ``[..., n]``, the highest value among each member's available actions.
            actions: ``[..., n]`` int64, those that `q` are the values of.
        """
        if self.bound_state:
            state = bounded(state)
        for_weight, for_bias = torch.relu(self.from_state(state)).chunk(2, -1)
        weight = self.weight(for_weight).abs() + _POSITIVE
        importance = self.importance(state, actions, alive)
        advantage = (weight * (q - best)).detach()
        # sum Q_a + (lambda_a - 1) A_a is sum V_a + lambda_a A_a; Q_a alone carries the gradient.
        of_members = weight * q + self.bias(for_bias) + (importance - 1.0) * advantage
        return (of_members * alive).sum(-1, keepdim=True)


class ImportanceWeights(nn.Module):
    """lambda, above 0, for each member; the paper's section 3.2, PyMARL's ``DMAQ_SI_Weight``.

    ``lambda_a(s, u) = sum_k |key_k(s)| sigmoid(agents_k,a(s)) sigmoid(actions_k,a(s, u))``, where u
    are the actions of all members, one-hot. Each head k has three networks of its own.

    Args:
        num_members: n.
        num_actions: of one member.
        state_dim: length of the state.
        num_heads: K.
        hidden_dims: units of the hidden layers of all networks; none: they are linear, and lambda
            then cannot see which actions go together.
    """

    def __init__(
        self,
        num_members: int,
        num_actions: int,
        state_dim: int,
        *,
        num_heads: int,
        hidden_dims: Sequence[int],
    ) -> None:
        super().__init__()
        joint_dim = state_dim + num_members * num_actions
        self.key = ParallelMLP(num_heads, (state_dim, *hidden_dims, 1))
        self.agents = ParallelMLP(num_heads, (state_dim, *hidden_dims, num_members))
        self.actions = ParallelMLP(num_heads, (joint_dim, *hidden_dims, num_members))
        self.register_buffer("_action_ids", torch.arange(num_actions), persistent=False)

    def forward(self, state: Tensor, actions: Tensor, alive: Tensor) -> Tensor:
        """Returns ``[..., n]`` for ``[..., state_dim]``, ``[..., n]`` int64 and ``[..., n]``."""
        shape = actions.shape
        state = state.reshape(-1, state.shape[-1])
        one_hot = (actions.unsqueeze(-1) == self._action_ids) * alive.unsqueeze(-1)
        joint = torch.cat([state, one_hot.reshape(len(state), -1)], -1)
        heads = (
            (self.key(state).abs() + _POSITIVE)
            * torch.sigmoid(self.agents(state))
            * torch.sigmoid(self.actions(joint))
        )
        return heads.sum(0).view(shape)


class ParallelMLP(nn.Module):
    """K networks of Linear layers with ReLU between them, computed at once.

    They begin as `torch.nn.Linear` does: uniform in ``+-1 / sqrt(inputs)``.

    Args:
        num: K.
        dims: of the inputs, the hidden layers and the outputs.
    """

    def __init__(self, num: int, dims: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(dims):
            bound = inputs**-0.5
            for store, rows in ((self.weights, inputs), (self.biases, 1)):
                store.append(nn.Parameter(torch.empty(num, rows, outputs).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``[K, B, outputs]`` for ``[B, inputs]``."""
        x = x.expand(len(self.weights[0]), *x.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if layer == 0 else torch.relu(x), weight)
        return x
