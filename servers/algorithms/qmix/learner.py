"""The loss of QMIX, VDN, QPLEX and independent Q-learning on whole episodes of a team."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER
from torch import Tensor

from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, STATE
from muxrl.servers.algorithms.fused_adam import FusedAdam
from muxrl.servers.algorithms.qmix.mixers import DuplexMixer
from muxrl.servers.algorithms.qmix.returns import bootstrapped_returns, follow_absent
from muxrl.servers.algorithms.qmix.rl_module import INPUTS, Q_VALUES, QMIXTorchRLModule
from muxrl.servers.algorithms.replay.replay import WEIGHTS
from muxrl.servers.algorithms.team_replay.learner import TeamReplayLearner

LOSS = "loss"
TD_ERROR_ABS = "td_error_abs"
Q_TAKEN_MEAN = "q_taken_mean"
TARGET_MEAN = "target_mean"
REWARD_SUM_MEAN = "reward_sum_mean"
IMPORTANCE_WEIGHT_MEAN = "importance_weight_mean"
PRIORITY_MAX = "priority_max"

MEMBERS, IMPORTANCE = "members", "importance"
"""With QPLEX's importance weights at a learning rate of their own: for all else, and for them."""


class QMIXTorchLearner(TeamReplayLearner):
    """Fits the mixed value of the members' actions to a target.

    Metrics of each module, over the last batch: ``loss``, ``td_error_abs``, ``q_taken_mean``,
    ``target_mean``, and ``reward_sum_mean``, the mean return of its episodes as the loss sees it,
    which shows if rewards get lost (in old RLlib's QMIX they did). Where episodes are drawn by
    priority also ``importance_weight_mean``, and ``priority_max``, the highest that was measured.
    """

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        assert config is not None
        module = self.module[module_id]
        params = [p for p in self.get_parameters(module) if p.requires_grad]
        mixer = module.unwrapped().mixer
        if config.importance_lr_factor == 1.0 or not isinstance(mixer, DuplexMixer):
            self._add_optimizer(module_id, DEFAULT_OPTIMIZER, params, config, factor=1.0)
            return
        of_importance = list(mixer.importance.parameters())
        apart = {id(parameter) for parameter in of_importance}
        others = [p for p in params if id(p) not in apart]
        self._add_optimizer(module_id, MEMBERS, others, config, factor=1.0)
        self._add_optimizer(
            module_id, IMPORTANCE, of_importance, config, factor=config.importance_lr_factor
        )

    def _add_optimizer(
        self,
        module_id: str,
        name: str,
        params: list[torch.nn.Parameter],
        config: AlgorithmConfig,
        *,
        factor: float,
    ) -> None:
        """Adds an optimizer whose learning rate is so many times the config's."""
        optimizer: torch.optim.Optimizer
        if config.optimizer_name == "rmsprop":
            optimizer = torch.optim.RMSprop(
                params, alpha=config.rmsprop_alpha, eps=config.optimizer_epsilon, foreach=True
            )
        else:
            optimizer = FusedAdam(params, config.optimizer_epsilon)
        is_number = isinstance(config.lr, int | float)
        self.register_optimizer(
            module_id=module_id,
            optimizer_name=name,
            optimizer=optimizer,
            params=params,
            lr_or_lr_schedule=(
                factor * config.lr if is_number else [[t, factor * lr] for t, lr in config.lr]
            ),
        )

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """``sum(mask * td^2) / sum(mask)``; Rashid et al. 2018, equation 6.

        ``td = Q_tot(t) - (r(t) + gamma (1 - terminated(t)) Q_tot_target(t + 1))``, or with
        longer returns, see `bootstrapped_returns`. The values at t + 1 are those of the members'
        greedy available actions; with double Q (van Hasselt et al. 2016) the online network
        chooses them, else the target network. Truncated episodes are bootstrapped: the observation
        after the last action is in the batch.

        Where episodes were drawn by priority, each has a weight before the sum; the divisor stays
        as it is (Schaul et al. 2016, algorithm 1).
        """
        module = self.module[module_id].unwrapped()
        values = fwd_out[Q_VALUES]
        q_taken, target = td_terms(
            module,
            values,
            module.forward_target(batch, fwd_out[INPUTS])[Q_VALUES],
            batch,
            gamma=config.gamma,
            double_q=config.double_q,
            n_step=config.n_step,
            td_lambda=config.td_lambda,
            is_mixed=config.mixer != "none",
        )
        mask = batch[Columns.LOSS_MASK].unsqueeze(-1)
        if config.mixer == "none":
            # Each member has its own error; an absent member has none.
            mask = mask * batch[Columns.OBS][ALIVE][:, :-1]
        num_terms = mask.sum().clamp(min=1.0)
        td_error = (q_taken - target) * mask
        squares = td_error.square()
        if WEIGHTS in batch:
            squares = batch[WEIGHTS][:, None, None] * squares
            self._prioritize(module_id, batch[WEIGHTS], td_error, mask, config)
        loss = squares.sum() / num_terms
        errors, taken, rewards = td_error.detach(), q_taken.detach(), batch[Columns.REWARDS]
        self.metrics.log_dict(
            {
                LOSS: loss.detach(),
                TD_ERROR_ABS: lambda: errors.abs().sum() / num_terms,
                Q_TAKEN_MEAN: lambda: (taken * mask).sum() / num_terms,
                TARGET_MEAN: lambda: (target * mask).sum() / num_terms,
                REWARD_SUM_MEAN: lambda: (rewards * batch[Columns.LOSS_MASK]).sum(1).mean(),
            },
            key=module_id,
            window=1,
        )
        return loss

    @torch.no_grad()
    def _prioritize(
        self, module_id: str, weights: Tensor, td_error: Tensor, mask: Tensor, config: Any
    ) -> None:
        priorities = episode_priorities(td_error, mask, config.prioritized_replay_eta)
        self.priorities[module_id] = priorities.cpu().numpy()
        self.metrics.log_dict(
            {IMPORTANCE_WEIGHT_MEAN: weights.mean(), PRIORITY_MAX: priorities.max()},
            key=module_id,
            window=1,
        )

    def should_move_targets(self, num_updates: int, config: AlgorithmConfig) -> bool:
        # A soft update (tau < 1) follows every update.
        return config.tau < 1.0 or num_updates % config.target_update_freq == 0


def td_terms(
    module: QMIXTorchRLModule,
    values: Tensor,
    target_values: Tensor,
    batch: dict[str, Any],
    *,
    gamma: float,
    double_q: bool,
    n_step: int = 1,
    td_lambda: float = 0.0,
    is_mixed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns the two sides of the temporal difference.

    Args:
        module: mixes, online and target.
        values: ``[B, T + 1, n, n_actions]`` of the online network.
        target_values: the same of the target network.
        batch: of `EpisodeReplay.sample`, in tensors.
        gamma, n_step, td_lambda: see `bootstrapped_returns`.
        double_q: whether the online network chooses the action whose value is bootstrapped.
        is_mixed: False where every member has a target of its own; see `follow_absent`.

    Returns:
        The mixed values of the actions taken, and their targets without gradient, both
        ``[B, T, 1]``, or ``[B, T, n]`` without a mixer.
    """
    obs = batch[Columns.OBS]
    state, alive, available = obs[STATE], obs[ALIVE], obs[ACTION_MASK]
    now, later = slice(None, -1), slice(1, None)

    def mixed(mix: Callable[..., Tensor], q: Tensor, actions: Tensor, at: slice) -> Tensor:
        """Mixes the values of these actions ``[B, T, n]``; `q` has those of all."""
        q = q[:, at]
        choice: tuple[Tensor, ...] = ()
        if module.mixes_advantages:
            best = _taken(q, _greedy(q, available[:, at])).detach()
            choice = best, actions
        return mix(_taken(q, actions), state[:, at], alive[:, at], *choice)

    q_taken = mixed(module.mix, values, batch[Columns.ACTIONS], now)
    with torch.no_grad():
        judge = values if double_q else target_values
        greedy = _greedy(judge[:, later], available[:, later])
        following = mixed(module.mix_target, target_values, greedy, later)
        rewards, terminated, mask = (
            batch[key].unsqueeze(-1)
            for key in (Columns.REWARDS, Columns.TERMINATEDS, Columns.LOSS_MASK)
        )
        if not is_mixed:
            following = follow_absent(
                following, alive[:, 1:], rewards, terminated, mask, gamma=gamma
            )
        target = bootstrapped_returns(
            rewards, following, terminated, mask, gamma=gamma, n_step=n_step, td_lambda=td_lambda
        )
    return q_taken, target


def _greedy(values: Tensor, available: Tensor) -> Tensor:
    """Returns the available action of the highest value, int64 ``[...]`` for ``[..., k]`` each."""
    return values.masked_fill(available == 0, -torch.inf).argmax(-1)


def _taken(values: Tensor, actions: Tensor) -> Tensor:
    # Looked up, not the masked maximum: no infinity meets the padding.
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def episode_priorities(td_error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """Returns ``eta max |td| + (1 - eta) mean |td|`` of each episode.

    Kapturowski et al. 2019, for sequences: the mean of a long one hides its large errors.

    Args:
        td_error: ``[B, T, k]``, 0 where `mask` is.
        mask: ``[B, T, k]``, 1 where there is an error.
        eta: 0.9 there.

    Returns:
        ``[B]``.
    """
    size = td_error.abs()
    mean = size.sum((1, 2)) / mask.sum((1, 2)).clamp(min=1.0)
    return eta * size.amax((1, 2)) + (1.0 - eta) * mean
