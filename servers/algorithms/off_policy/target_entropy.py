"""The entropy that SAC's temperature is adapted to, where actions are discrete."""

from __future__ import annotations

import math
from typing import Any

from gymnasium import spaces
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from torch import Tensor

from muxrl.servers.agents.keys import ACTION_MASK

AUTO = "auto"
SHARE = 0.3
"""Of the highest entropy, ``log n``. A policy that takes one of n = 5 actions nine times out of
ten, and the others alike, has 0.29 of it, with n = 2 actions 0.47, with n = 18 0.21.
"""


class ReachableTargetEntropy(SACTorchLearner):
    """A mixin before RLlib's learner: an ``auto`` that a policy of discrete actions can have.

    RLlib takes minus the number of action dimensions, a rule for densities: -1 for discrete
    actions, whose entropy is never below 0, so that the temperature falls for ever. Here it is
    `SHARE` of the entropy of the uniform policy over the available actions, in the mean over a
    batch. Christodoulou 2019 (arXiv 1910.07207) takes a share of 0.98, for which a policy has to
    be all but uniform.
    """

    def _get_target_entropy(self, module_id: str) -> float:
        space = self._module_spec.module_specs[module_id].action_space
        setting = self.config.get_config_for_module(module_id).target_entropy
        if setting == AUTO and isinstance(space, spaces.Discrete):
            return SHARE * math.log(space.n)
        return float(super()._get_target_entropy(module_id))

    def _compute_loss_for_module_discrete(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        seen = batch[Columns.OBS]
        if config.target_entropy == AUTO and isinstance(seen, dict) and ACTION_MASK in seen:
            # Each loss has the mean over the batch of entropy and target, so their means will do.
            num_available = (seen[ACTION_MASK] > 0).sum(-1).clamp(min=1)
            self.target_entropy[module_id] = SHARE * num_available.float().log().mean()
        loss: Tensor = super()._compute_loss_for_module_discrete(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )
        return loss
