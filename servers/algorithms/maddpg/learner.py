"""The losses of MADDPG and MATD3."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from torch import Tensor

from muxrl.servers.agents.keys import ALIVE, STATE
from muxrl.servers.algorithms.joint_critics.learner import CRITIC, POLICY, JointCriticLearner
from muxrl.servers.algorithms.maddpg.rl_module import LOGITS, MADDPGTorchRLModule

LOGIT_PENALTY = 1e-3
"""On the mean square of the actor's outputs, where members have Discrete actions: without it they
grow until nothing else is tried. That of the code of Lowe et al. 2017."""


class MADDPGTorchLearner(JointCriticLearner):
    """Fits the critics to a target, and at every ``policy_delay``-th update the actor to the first.

    With ``mu`` the actor, and target copies of actor and critics (Lowe et al. 2017, equations 5
    and 6; Fujimoto et al. 2018, algorithm 1, for what MATD3 adds)::

        critics  mean (Q_i(s, a) - y)^2,  y = r + gamma (1 - terminated) min_i Q_i_target(s', a'),
                 a'_m = clip(mu_target(o'_m) + clip(noise, -c, c), -1, 1)
        actor    mean over steps and present members m of
                 - Q_1(s, a with mu(o_m) in the place of a_m)

    Targets move when the actor does. More metrics, over the last batch: ``qf_mean``,
    ``target_mean`` and ``reward_mean``; ``policy_loss`` is of the last update that had one.
    """

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
        obs, taken = batch[Columns.OBS], batch[Columns.ACTIONS]
        target = td_target(
            module,
            batch,
            gamma=config.gamma,
            noise=config.target_noise,
            noise_clip=config.target_noise_clip,
        )
        values = module.values(obs, taken)
        losses = {CRITIC: (values - target).square().mean(1).sum()}
        # Of the update that is under way; `should_move_targets` is asked after it.
        if self.should_move_targets(self._num_updates[module_id] + 1, config):
            own = values_of_own_actions(module, obs, taken, fwd_out[Columns.ACTIONS])
            alive = obs[ALIVE]
            losses[POLICY] = -(own * alive).sum() / alive.sum().clamp(min=1.0)
            if module.has_choices:
                losses[POLICY] = losses[POLICY] + LOGIT_PENALTY * fwd_out[LOGITS].square().mean()
        return self.keep_losses(
            module_id,
            losses,
            {
                "qf_mean": values.detach().mean(),
                "target_mean": target.mean(),
                "reward_mean": batch[Columns.REWARDS].mean(),
            },
        )

    def should_move_targets(self, num_updates: int, config: AlgorithmConfig) -> bool:
        return bool(num_updates % config.policy_delay == 0)


@torch.no_grad()
def td_target(
    module: MADDPGTorchRLModule,
    batch: dict[str, Any],
    *,
    gamma: float,
    noise: float,
    noise_clip: float,
) -> Tensor:
    """Returns what the critics are fitted to, ``[B]``; see `MADDPGTorchLearner`.

    A terminated step has no future; a truncated one has that of the observation after it. Members
    that are absent there have no part in the joint action.

    Args:
        module: has the target networks.
        batch: of `StepReplay.sample`, in tensors.
        gamma: discount.
        noise, noise_clip: see `MADDPGTorchRLModule.target_actions`.
    """
    following = batch[Columns.NEXT_OBS]
    actions = module.target_actions(following, noise, noise_clip)
    lower = module.forward_target({Columns.OBS: following, Columns.ACTIONS: actions}).amin(0)
    discount = gamma * (1.0 - batch[Columns.TERMINATEDS])
    target: Tensor = batch[Columns.REWARDS] + discount * lower
    return target


def values_of_own_actions(
    module: MADDPGTorchRLModule, obs: dict[str, Tensor], taken: Tensor, actions: Tensor
) -> Tensor:
    """Returns for each member the first critic's value ``[B, n]`` if it alone acts by `actions`.

    So a gradient reaches a member's action by its own value only: the others' are those of the
    replay (Lowe et al. 2017, equation 5).

    Args:
        module: has the critics.
        obs: as a team observes, ``[B, ...]``.
        taken: ``[B, n, d]``, from the replay.
        actions: ``[B, n, d]``, the actor's.
    """
    num_rows, n, _ = actions.shape
    is_own = torch.eye(n, dtype=torch.bool, device=actions.device).view(1, n, n, 1)
    joint = torch.where(is_own, actions.unsqueeze(1), taken.unsqueeze(1))
    repeated = {key: obs[key].repeat_interleave(n, 0) for key in (STATE, ALIVE)}
    return module.values(repeated, joint.flatten(0, 1))[0].view(num_rows, n)
