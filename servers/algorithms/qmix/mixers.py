"""Mixers: compute the value of a team from the values of its members.

All take ``q [..., n]``, ``state [..., state_dim]`` and ``alive [..., n]``; a mixer that
``mixes_advantages`` also takes ``best [..., n]`` and ``actions [..., n]``, see `DuplexMixer`. A
mixer that ``is_joint`` returns the team's value ``[..., 1]``, the others a value of each member.

All ignore absent members: their values are set to 0 before they are mixed, so that neither VDN's
sum nor QMIX's first layer sees the network's value of an empty observation row. (PyMARL mixes the
value of a dead agent's only action, "no-op", which the state-dependent bias can cancel; here it is
exactly 0.)
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from muxrl.servers.algorithms.networks import ParallelMLP
from muxrl.servers.algorithms.qmix.networks import num_actions_of
from muxrl.servers.algorithms.settings.teams import QMIXSettings
from muxrl.servers.trainers.interface import PolicySpec

_POSITIVE = 1e-10
"""Added to absolute values in QPLEX, as in PyMARL, so that no weight is 0 and cuts a member off."""


def bounded(state: Tensor) -> Tensor:
    """Scales states ``[..., state_dim]`` down to a root mean square of at most 1.

    The outputs of hypernetworks grow with the state, and so would values far from the states seen
    (agents that walk off a plane), which then attract agents that maximise them. Smaller states
    stay as they are.
    """
    return state / state.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)


class Mixer(nn.Module):
    """Base class of the mixers; see the module."""

    mixes_advantages: ClassVar[bool] = False
    is_joint: ClassVar[bool] = True


class QMixer(Mixer):
    """Monotonic mixing, Rashid et al. 2018 (arXiv 1803.11485), section 4 and figure 2.

    ``Q_tot = elu(q |W1(s)| + b1(s)) |w2(s)| + V(s)``. All weights come from hypernetworks of the
    state. Their absolute values make ``dQ_tot / dq_a >= 0`` for every member a, so that the
    members' own greedy actions are the team's greedy action (equation 5 there).

    Args:
        own: the settings.
        policy: has the sizes.
    """

    def __init__(self, own: QMIXSettings, policy: PolicySpec) -> None:
        super().__init__()
        self.num_members = policy.observation_space.shape[0]
        self.embed_dim = embed_dim = own.mixing_embed_dim
        self.bound_state = own.bound_state

        # The first layers of all hypernetworks, and the bias, read the state: one product.
        self._widths = (own.hypernet_embed, own.hypernet_embed, embed_dim, embed_dim)
        self.from_state = nn.Linear(policy.state_size, sum(self._widths))
        self.weights_1 = nn.Linear(own.hypernet_embed, self.num_members * embed_dim)
        self.weights_2 = nn.Linear(own.hypernet_embed, embed_dim)
        self.value = nn.Linear(embed_dim, 1)

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """Returns the team's value ``[..., 1]``."""
        shape = q.shape[:-1]
        q = (q * alive).reshape(-1, self.num_members, 1)
        state = state.reshape(-1, state.shape[-1])
        if self.bound_state:
            state = bounded(state)
        first = self.from_state(state)
        bias_1 = first[:, -self.embed_dim :]
        for_w1, for_w2, for_value = torch.relu(first[:, : -self.embed_dim]).split(
            self._widths[:-1], -1
        )
        w1 = self.weights_1(for_w1).abs().view(-1, self.num_members, self.embed_dim)
        hidden = functional.elu((q * w1).sum(1) + bias_1)
        w2 = self.weights_2(for_w2).abs()
        q_tot = (hidden * w2).sum(-1, keepdim=True) + self.value(for_value)
        return q_tot.view(*shape, 1)


class VDNMixer(Mixer):
    """``Q_tot = sum_a q_a``: value decomposition, Sunehag et al. 2017 (arXiv 1706.05296)."""

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """Returns the team's value ``[..., 1]``."""
        return (q * alive).sum(-1, keepdim=True)


class NoMixer(Mixer):
    """Independent Q-learning (Tan 1993): every member learns from the team's reward by itself.

    The value of an absent member is 0 here; the trainer replaces it by the team's rewards in the
    meantime, see `follow_absent`.
    """

    is_joint = False

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """Returns each member's own value ``[..., n]``."""
        return q * alive


class DuplexMixer(Mixer):
    """QPLEX's mixer, duplex dueling: Wang et al. 2021, ICLR (arXiv 2008.01062), section 3.

    Dueling happens in two places: each member's value is split into a state value and an advantage,
    and so is the team's. Only the advantages decide which joint action is the best.

    With a member's value `q_a`, and `best_a` the highest among its available actions::

        Q_a   = w_a(s) q_a + b_a(s),  w_a > 0                         the transformation
        V_a   = w_a(s) best_a + b_a(s),  A_a = Q_a - V_a <= 0         dueling, for each member
        Q_tot = sum_a V_a + sum_a lambda_a(s, u) A_a,  lambda_a > 0   dueling, for the team

    An advantage is 0 for a member's greedy action and below 0 for other actions, whatever lambda
    is, so that the members' greedy actions are the team's ("individual-global-max", IGM). Lambda
    sees the joint action u, and can give all other joint actions any lower value. So QPLEX can
    represent any payoff matrix, and QMIX only monotonic ones. With lambda = 1 it is a weighted VDN.

    As in PyMARL's ``dmaq_general``, no gradient passes through the advantages: lambda learns from
    them, and the members' values from ``sum_a Q_a``.

    Absent members count as exactly 0, biases included, and lambda does not see their actions.

    Args:
        own: the settings.
        policy: has the sizes.
    """

    mixes_advantages = True

    def __init__(self, own: QMIXSettings, policy: PolicySpec) -> None:
        super().__init__()
        self.bound_state = own.bound_state
        num_members = policy.observation_space.shape[0]
        # The first layers of both hypernetworks read the state: one product.
        self.from_state = nn.Linear(policy.state_size, 2 * own.hypernet_embed)
        self.weight = nn.Linear(own.hypernet_embed, num_members)
        self.bias = nn.Linear(own.hypernet_embed, num_members)
        self.importance = ImportanceWeights(own, policy)

    def forward(
        self, q: Tensor, state: Tensor, alive: Tensor, best: Tensor, actions: Tensor
    ) -> Tensor:
        """Returns the team's value ``[..., 1]`` of a joint action.

        Args:
            q: values of the members' actions, ``[..., n]``.
            state: ``[..., state_dim]``.
            alive: ``[..., n]``, 0 for absent members.
            best: highest value among each member's available actions, ``[..., n]``.
            actions: the members' actions, whose values are in `q`, ``[..., n]`` int64.
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
    """QPLEX's lambda, above 0, for each member: section 3.2, PyMARL's ``DMAQ_SI_Weight``.

    ``lambda_a(s, u) = sum_k |key_k(s)| sigmoid(agents_k,a(s)) sigmoid(actions_k,a(s, u))``, where u
    are the actions of all members, one-hot. Each head k has three networks.

    Without hidden layers these are linear, so that lambda cannot see which actions go together.

    Args:
        own: the settings.
        policy: has the sizes.
    """

    def __init__(self, own: QMIXSettings, policy: PolicySpec) -> None:
        super().__init__()
        (num_members, _), num_actions = policy.observation_space.shape, num_actions_of(policy)
        hidden = [own.adv_hypernet_embed] * (own.adv_hypernet_layers - 1)
        state_dim, joint_dim = policy.state_size, policy.state_size + num_members * num_actions
        self.key = ParallelMLP(own.num_kernel, (state_dim, *hidden, 1))
        self.agents = ParallelMLP(own.num_kernel, (state_dim, *hidden, num_members))
        self.actions = ParallelMLP(own.num_kernel, (joint_dim, *hidden, num_members))
        self.register_buffer("_action_ids", torch.arange(num_actions), persistent=False)

    def forward(self, state: Tensor, actions: Tensor, alive: Tensor) -> Tensor:
        """Returns lambda of each member, ``[..., n]``.

        Args:
            state: ``[..., state_dim]``.
            actions: ``[..., n]`` int64.
            alive: ``[..., n]``, 0 for absent members.
        """
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


def make_mixer(own: QMIXSettings, policy: PolicySpec) -> Mixer:
    """Returns the mixer that the settings name."""
    if own.mixer == "qmix":
        return QMixer(own, policy)
    if own.mixer == "qplex":
        return DuplexMixer(own, policy)
    return VDNMixer() if own.mixer == "vdn" else NoMixer()
