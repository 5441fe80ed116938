"""A2C: synchronous advantage actor-critic.

The synchronous form of A3C, Mnih et al. 2016 (arXiv 1602.01783), algorithm S3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from muxrl.servers.algorithms.actor_critic import OWN, OnPolicy, mean_of_own, steps_of
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES, TARGETS
from muxrl.servers.algorithms.settings.actor_critic import A2CSettings


class A2C(OnPolicy):
    """synchronous advantage actor-critic (Mnih et al. 2016)

    ::

        - log pi(a|s) A + c_v (V(s) - R)^2 - c_e H(pi)

    Section 4 ("Asynchronous advantage actor-critic"). No gradient flows through the advantages.
    """

    Settings = A2CSettings
    settings: A2CSettings

    def loss(self, batch: Mapping[str, Any], *, is_reported: bool) -> tuple[Tensor, dict[str, Any]]:
        inputs, values = self.predicted(batch)
        log_prob, entropy, _ = self.distribution.terms(inputs, batch[ACTIONS])
        advantages = batch[ADVANTAGES].masked_fill(~batch[OWN], 0.0)
        # An unavailable action that was chosen elsewhere may have an infinite log-probability.
        gain = log_prob.masked_fill(~batch[OWN], 0.0) * advantages
        entropy = entropy.masked_fill(~batch[OWN], 0.0)
        mean_entropy = mean_of_own(batch, entropy)
        gain, entropy, values, targets = steps_of(batch, gain, entropy, values, batch[TARGETS])
        policy_loss, vf_loss = -gain.mean(), (values - targets).square().mean()
        loss = policy_loss + self.settings.vf_loss_coeff * vf_loss
        loss = loss - self.entropy_coeff * entropy.mean()
        return loss, self.measured(targets, values, loss, policy_loss, vf_loss, mean_entropy)
