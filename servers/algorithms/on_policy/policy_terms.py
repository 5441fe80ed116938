"""What PPO's loss reads of a policy and of the one that acted, in few operations on tensors.

For Discrete actions, `torch.distributions` normalises the numbers, and makes probabilities of them,
again for each of these terms. In an update of a small network each operation takes as long to
start as to compute.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from torch import Tensor


def policy_terms(
    module: Any, inputs: Tensor, batch: dict[str, Any], *, needs_kl: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the terms of each row, as RLlib's distributions have them.

    But of Discrete actions the divergence is finite, also where RLlib's is not, because a
    probability is 0 in float32.

    Args:
        module: says which distributions they are.
        inputs: of the distribution that is learned, ``[..., k]``.
        batch: has ``ACTIONS``, and ``ACTION_DIST_INPUTS`` of the policy that acted.
        needs_kl: whether the last of the terms is wanted.

    Returns:
        Log-probabilities of the actions, entropies, and the divergence of the distribution from
        that of the policy that acted, KL(acted || learned), all ``[...]``.
    """
    learned, acted = module.get_train_action_dist_cls(), module.get_exploration_action_dist_cls()
    if learned is TorchCategorical and acted is TorchCategorical:
        return _categorical_terms(inputs, batch, needs_kl=needs_kl)
    distribution = learned.from_logits(inputs)
    kl = None
    if needs_kl:
        kl = acted.from_logits(batch[Columns.ACTION_DIST_INPUTS]).kl(distribution)
    return distribution.logp(batch[Columns.ACTIONS]), distribution.entropy(), kl


def _categorical_terms(
    logits: Tensor, batch: dict[str, Any], *, needs_kl: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    log_probs = logits.log_softmax(-1)
    actions = batch[Columns.ACTIONS].long().unsqueeze(-1)
    # A masked action's may be infinite; times its probability it is 0.
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    entropy = -(finite * log_probs.exp()).sum(-1)
    kl = None
    if needs_kl:
        acted = batch[Columns.ACTION_DIST_INPUTS].log_softmax(-1)
        probs = acted.exp()
        kl = (probs * (acted - log_probs)).masked_fill(probs == 0, 0.0).sum(-1)
    return log_probs.gather(-1, actions).squeeze(-1), entropy, kl
