"""Mixing networks: from the members' values to one value of the team.

All take ``q [..., n]``, ``state [..., state_dim]`` and ``alive [..., n]`` and ignore absent
members: their value is set to 0 before it is mixed, so that neither vdn's sum nor QMIX's first
layer sees what the network makes of an empty observation row. (PyMARL mixes the value of a dead
agent's only action, "no-op", which the state-dependent bias can cancel; here it is exactly 0.)
"""

from __future__ import annotations

from typing import Literal

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
    """

    def __init__(self, num_members: int, state_dim: int, embed_dim: int, hypernet_embed: int):
        super().__init__()
        self.num_members = num_members
        self.embed_dim = embed_dim

        def hypernetwork(hidden: int, out: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(state_dim, hidden), nn.ReLU(), nn.Linear(hidden, out))

        self.weights_1 = hypernetwork(hypernet_embed, num_members * embed_dim)
        self.bias_1 = nn.Linear(state_dim, embed_dim)
        self.weights_2 = hypernetwork(hypernet_embed, embed_dim)
        self.value = hypernetwork(embed_dim, 1)

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """The team's value ``[..., 1]``."""
        shape = q.shape[:-1]
        q = (q * alive).reshape(-1, self.num_members, 1)
        state = state.reshape(-1, state.shape[-1])
        w1 = self.weights_1(state).abs().view(-1, self.num_members, self.embed_dim)
        hidden = functional.elu((q * w1).sum(1) + self.bias_1(state))
        w2 = self.weights_2(state).abs()
        q_tot = (hidden * w2).sum(-1, keepdim=True) + self.value(state)
        return q_tot.view(*shape, 1)


class VDNMixer(nn.Module):
    """``Q_tot = sum_a q_a``: value decomposition, Sunehag et al. 2017 (arXiv 1706.05296)."""

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """The team's value ``[..., 1]``."""
        return (q * alive).sum(-1, keepdim=True)


class NoMixer(nn.Module):
    """Independent Q-learning (Tan 1993): every member learns the team's reward for itself.

    An absent member has no value of its own, and 0 stands for it here; the learner puts what the
    team earns meanwhile in its place, see `follow_absent`.
    """

    def forward(self, q: Tensor, state: Tensor, alive: Tensor) -> Tensor:
        """Each member's own value ``[..., n]``."""
        return q * alive


def make_mixer(
    name: MixerName, num_members: int, state_dim: int, embed_dim: int, hypernet_embed: int
) -> nn.Module:
    """The mixer of that name."""
    if name == "qmix":
        return QMixer(num_members, state_dim, embed_dim, hypernet_embed)
    if name == "vdn":
        return VDNMixer()
    if name == "none":
        return NoMixer()
    raise ValueError(f"unknown mixer {name!r}: it is one of {', '.join(MIXERS)}")
