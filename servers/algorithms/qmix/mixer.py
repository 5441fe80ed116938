"""Mixing networks: from the members' values to one value of the team.

All take ``q [..., n]``, ``state [..., state_dim]`` and ``alive [..., n]``, and ignore absent
members: their value is set to 0 before it is mixed, so that neither VDN's sum nor QMIX's first
layer sees the network's value of an empty observation row. (PyMARL mixes the value of a dead
agent's only action, "no-op", which the state-dependent bias can cancel; here it is exactly 0.)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

MixerName = Literal["qmix", "vdn", "none"]
MIXERS: tuple[MixerName, ...] = ("qmix", "vdn", "none")


class QMixer(nn.Module):
    """Monotonic mixing, Rashid et al. 2018 (arXiv 1803.11485), section 4 and figure 2.

    ``Q_tot = elu(q |W1(s)| + b1(s)) |w2(s)| + V(s)``. All weights come from hypernetworks of the
    state, and the absolute value makes ``dQ_tot / dq_a >= 0`` for every member a, so that the
    members' own greedy actions are the team's greedy action (equation 5 there).

    Args:
        num_members: n.
        state_dim: length of the state.
        embed_dim: units of the mixing network's hidden layer.
        hypernet_embed: units of the hidden layer of the hypernetworks that make the weights.
        bound_state: whether a state whose root mean square is above 1 is scaled down to 1. The
            weights grow with the state, and so would values far from the states seen (agents that
            walk off a plane), which then attract agents that maximise them.
    """

    def __init__(
        self,
        num_members: int,
        state_dim: int,
        embed_dim: int,
        hypernet_embed: int,
        *,
        bound_state: bool = True,
    ) -> None:
        super().__init__()
        self.num_members = num_members
        self.embed_dim = embed_dim
        self.bound_state = bound_state

        # The first layers of all hypernetworks, and the bias, read the same: one product.
        self._widths = (hypernet_embed, hypernet_embed, embed_dim, embed_dim)
        self.from_state = nn.Linear(state_dim, sum(self._widths))
        self.weights_1 = nn.Linear(hypernet_embed, num_members * embed_dim)
        self.weights_2 = nn.Linear(hypernet_embed, embed_dim)
        self.value = nn.Linear(embed_dim, 1)

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """The team's value ``[..., 1]``."""
        shape = q.shape[:-1]
        q = (q * alive).reshape(-1, self.num_members, 1)
        state = state.reshape(-1, state.shape[-1])
        if self.bound_state:
            state = state / state.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)
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


class VDNMixer(nn.Module):
    """``Q_tot = sum_a q_a``: value decomposition, Sunehag et al. 2017 (arXiv 1706.05296)."""

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """The team's value ``[..., 1]``."""
        return (q * alive).sum(-1, keepdim=True)


class NoMixer(nn.Module):
    """Independent Q-learning (Tan 1993): every member learns the team's reward for itself.

    The value of an absent member is 0 here; the learner replaces it by what the team earns
    meanwhile, see `follow_absent`.
    """

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """Each member's own value ``[..., n]``."""
        return q * alive


def make_mixer(
    name: MixerName,
    num_members: int,
    state_dim: int,
    embed_dim: int,
    hypernet_embed: int,
    *,
    bound_state: bool = True,
) -> nn.Module:
    """The mixer of that name."""
    if name == "qmix":
        return QMixer(num_members, state_dim, embed_dim, hypernet_embed, bound_state=bound_state)
    if name == "vdn":
        return VDNMixer()
    if name == "none":
        return NoMixer()
    raise ValueError(f"unknown mixer {name!r}: it is one of {', '.join(MIXERS)}")
