"""The losses of MASAC: SAC's on a team's joint action and the sum of its members' entropies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.policy.sample_batch import SampleBatch
from torch import Tensor

from muxrl.servers.algorithms.masac.replay import StepBatch
from muxrl.servers.algorithms.masac.rl_module import LOGP, MASACTorchRLModule
from muxrl.servers.algorithms.team_replay.learner import TeamReplayLearner
from muxrl.servers.teams import ALIVE, OBS

CRITIC, POLICY, ALPHA = "qf", "policy", "alpha"
"""RLlib's names of SAC's optimizers; a loss is called ``NAME_loss``."""


class MASACTorchLearner(TeamReplayLearner, SACTorchLearner):
    """Fits two critics to a soft target, the actor to the lower critic, and the temperature.

    With ``log pi(t) = sum over present members m of log pi(a_m | o_m)`` and ``a'`` drawn by the
    current actor at t + 1 (Haarnoja et al. 2018, arXiv 1812.05905, equations 5, 7 and 18, for a
    policy that is a product over members)::

        critics  mean (Q_i(s, a) - y)^2,
                 y = r + gamma (1 - terminated) (min_i Q_i_target(s', a') - alpha log pi(a'))
        actor    mean alpha log pi(a) - min_i Q_i(s, a),  a drawn anew for every member
        alpha    mean over steps of  - log alpha * sum over present m of (log pi(a_m) + H_m)

    RLlib's SAC learner keeps the temperatures; losses, gradients and target copies are not its.
    Metrics of each module, over the last batch: the three losses, ``alpha_value``, ``logp_mean`` of
    the team, ``qf_mean``, ``target_mean`` and ``reward_mean``.
    """

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        assert config is not None
        module = self.module[module_id].unwrapped()
        for name, params, lr in (
            (CRITIC, self.get_parameters(module.critic), config.critic_lr),
            (POLICY, self.get_parameters(module.actor), config.actor_lr),
            (ALPHA, [self.curr_log_alpha[module_id]], config.alpha_lr),
        ):
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=torch.optim.Adam(params, foreach=True),
                params=params,
                lr_or_lr_schedule=lr,
            )

    def _get_target_entropy(self, module_id: str) -> np.ndarray:
        """Returns each member's ``[n]``; "auto" is minus its number of action dimensions."""
        target = self.config.get_config_for_module(module_id).target_entropy
        # Bounds of 0 are those of dimensions that a member lacks; see `ContinuousTeamSpec`.
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

        losses = {CRITIC: critic_loss, POLICY: policy_loss, ALPHA: alpha_loss}
        for name, loss in losses.items():
            self._temp_losses[module_id, name] = loss
        self.metrics.log_dict(
            {
                **{f"{name}_loss": loss.detach() for name, loss in losses.items()},
                "alpha_value": alpha[0],
                "logp_mean": team_logp.detach().mean(),
                "qf_mean": values.detach().mean(),
                "target_mean": target.mean(),
                "reward_mean": batch[Columns.REWARDS].mean(),
            },
            key=module_id,
            window=1,
        )
        return critic_loss + policy_loss + alpha_loss

    def compute_gradients(
        self, loss_per_module: dict[str, Tensor], **kwargs: Any
    ) -> dict[Any, Any]:
        """Returns the gradient of each loss by the parameters of its optimizer alone.

        So the actor's loss, which goes through the critics, does not move them.
        """
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)  # of modules that are not in this update, too
        gradients: dict[Any, Any] = {}
        for (module_id, name), loss in self._temp_losses.items():
            refs = self._optimizer_parameters[self.get_optimizer(module_id, name)]
            found = torch.autograd.grad(loss, [self._params[r] for r in refs], retain_graph=True)
            gradients.update(zip(refs, found, strict=True))
        self._temp_losses.clear()
        return gradients


@torch.no_grad()
def soft_target(
    module: MASACTorchRLModule, batch: dict[str, Any], alpha: Tensor, *, gamma: float
) -> Tensor:
    """Returns what both critics are fitted to, ``[B]``; see `MASACTorchLearner`.

    A terminated step has no future; a truncated one has that of the observation after it. Members
    that are absent there have no entropy, and no part in the joint action.

    Args:
        module: draws the next actions, and has the target critics.
        batch: as `to_sample_batch` makes it.
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


def to_sample_batch(batch: StepBatch) -> SampleBatch:
    """Returns tensors that share the batch's memory, under RLlib's column names."""

    def tensors(columns: dict[str, np.ndarray]) -> dict[str, Tensor]:
        return {key: torch.from_numpy(value) for key, value in columns.items()}

    return SampleBatch(
        {
            Columns.OBS: tensors(batch.obs),
            Columns.ACTIONS: torch.from_numpy(batch.actions),
            Columns.REWARDS: torch.from_numpy(batch.rewards),
            Columns.TERMINATEDS: torch.from_numpy(batch.terminated),
            Columns.NEXT_OBS: tensors(batch.next_obs),
        }
    )
