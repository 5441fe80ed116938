"""The losses of MASAC: SAC's on a team's joint action and the sum of its members' entropies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from torch import Tensor

from muxrl.servers.agents.keys import ALIVE, OBS
from muxrl.servers.algorithms.joint_critics.learner import CRITIC, POLICY, JointCriticLearner
from muxrl.servers.algorithms.masac.rl_module import LOGP, MASACTorchRLModule

ALPHA = "alpha"
"""RLlib's name of the temperature's optimizer."""


class MASACTorchLearner(JointCriticLearner, SACTorchLearner):
    """Fits two critics to a soft target, the actor to the lower critic, and the temperature.

    With ``log pi(t) = sum over present members m of log pi(a_m | o_m)`` and ``a'`` drawn by the
    current actor at t + 1 (Haarnoja et al. 2018, arXiv 1812.05905, equations 5, 7 and 18, for a
    policy that is a product over members)::

        critics  mean (Q_i(s, a) - y)^2,
                 y = r + gamma (1 - terminated) (min_i Q_i_target(s', a') - alpha log pi(a'))
        actor    mean alpha log pi(a) - min_i Q_i(s, a),  a drawn anew for every member
        alpha    mean over steps of  - log alpha * sum over present m of (log pi(a_m) + H_m)

    RLlib's SAC learner keeps the temperatures; losses, gradients and target copies are not its.
    More metrics, over the last batch: ``alpha_value``, ``logp_mean`` of the team, ``qf_mean``,
    ``target_mean`` and ``reward_mean``.
    """

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        assert config is not None
        super().configure_optimizers_for_module(module_id, config)
        self._add_adam(module_id, ALPHA, [self.curr_log_alpha[module_id]], config.alpha_lr)

    def _get_target_entropy(self, module_id: str) -> np.ndarray:
        """Returns each member's ``[n]``; "auto" is minus its number of action dimensions."""
        target = self.config.get_config_for_module(module_id).target_entropy
        # Bounds of 0 are those of dimensions that a member lacks; see `TeamVectors`.
        high = self._module_spec.module_specs[module_id].action_space.high
        if target == "auto":
            return -(high > 0).sum(1).astype(np.float32)
        return np.full(len(high), target, np.float32)

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """The losses of this class's docstring, added up; gradients are of each alone."""
        module = self.module[module_id].unwrapped()
        obs, log_alpha = batch[Columns.OBS], self.curr_log_alpha[module_id]
        alpha = log_alpha.detach().exp()
        target = soft_target(module, batch, alpha, gamma=config.gamma)
        values = module.values(obs, batch[Columns.ACTIONS])
        critic_loss = (values - target).square().mean(1).sum()

        team_logp = (fwd_out[LOGP] * obs[ALIVE]).sum(-1)
        lower = module.values(obs, fwd_out[Columns.ACTIONS]).amin(0)
        policy_loss = (alpha * team_logp - lower).mean()

        surplus = (fwd_out[LOGP].detach() + self.target_entropy[module_id]) * obs[ALIVE]
        alpha_loss = -(log_alpha * surplus.sum(-1)).mean()

        return self.keep_losses(
            module_id,
            {CRITIC: critic_loss, POLICY: policy_loss, ALPHA: alpha_loss},
            {
                "alpha_value": alpha[0],
                "logp_mean": team_logp.detach().mean(),
                "qf_mean": values.detach().mean(),
                "target_mean": target.mean(),
                "reward_mean": batch[Columns.REWARDS].mean(),
            },
        )


@torch.no_grad()
def soft_target(
    module: MASACTorchRLModule, batch: dict[str, Any], alpha: Tensor, *, gamma: float
) -> Tensor:
    """Returns what both critics are fitted to, ``[B]``; see `MASACTorchLearner`.

    A terminated step has no future; a truncated one has that of the observation after it. Members
    that are absent there have no entropy, and no part in the joint action.

    Args:
        module: draws the next actions, and has the target critics.
        batch: of `StepReplay.sample`, in tensors.
        alpha: the temperature, ``[1]``.
        gamma: discount.
    """
    following = batch[Columns.NEXT_OBS]
    actions, logp = module.sample_actions(following[OBS])
    lower = module.forward_target({Columns.OBS: following, Columns.ACTIONS: actions}).amin(0)
    soft_value = lower - alpha * (logp * following[ALIVE]).sum(-1)
    discount = gamma * (1.0 - batch[Columns.TERMINATEDS])
    target: Tensor = batch[Columns.REWARDS] + discount * soft_value
    return target
