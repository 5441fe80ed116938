"""DQN's and SAC's losses, RLlib's, on drawn batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import dqn_learner as dqn
from ray.rllib.algorithms.dqn.torch.dqn_torch_learner import DQNTorchLearner
from ray.rllib.algorithms.sac import sac_learner as sac
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.utils.metrics import LAST_TARGET_UPDATE_TS, TD_ERROR_KEY
from torch import Tensor
from torch.nn import functional

from muxrl.servers.algorithms.fused_adam import FusedAdam
from muxrl.servers.algorithms.off_policy.target_entropy import ReachableTargetEntropy
from muxrl.servers.algorithms.replay.learner import ReplayLearner
from muxrl.servers.algorithms.replay.replay import ROWS, WEIGHTS
from muxrl.servers.algorithms.replay.steps import N_STEP


class OffPolicyLearner(ReplayLearner):
    """Moves the targets of all policies at their multiples of env steps, as RLlib does."""

    def move_targets(self, updated: Iterable[str], env_steps: int) -> None:
        for module_id in self.module.keys():  # noqa: SIM118, it is no dict
            config = self.config.get_config_for_module(module_id)
            if (
                env_steps - self.last_update_ts_by_mid[module_id]
                < config.target_network_update_freq
            ):
                continue
            self.follow(module_id, config.tau)
            self.last_update_ts_by_mid[module_id] = env_steps
            self.metrics.log_value((module_id, LAST_TARGET_UPDATE_TS), env_steps, reduce="max")


class DQNLearner(OffPolicyLearner, DQNTorchLearner):
    """RLlib's learner; without atoms its loss in fewer operations."""

    last_update_ts_by_mid: defaultdict[str, int]

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        assert config is not None
        parameters = self.get_parameters(self.module[module_id])
        self.register_optimizer(
            module_id=module_id,
            optimizer=FusedAdam(parameters),
            params=parameters,
            lr_or_lr_schedule=config.lr,
        )

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """The mean of the Huber or the squared loss of ``Q(s, a) - y``.

        ``y = r + gamma**k (1 - terminated) Q_target(s', a')``, where ``a'`` is the best action by
        the online network with double Q, else by the target network.
        """
        if config.num_atoms > 1:
            loss: Tensor = super().compute_loss_for_module(
                module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
            )
            return loss
        taken = _at(fwd_out[dqn.QF_PREDS], batch[Columns.ACTIONS])
        with torch.no_grad():
            target_values = fwd_out[dqn.QF_TARGET_NEXT_PREDS]
            judge = fwd_out[dqn.QF_NEXT_PREDS] if config.double_q else target_values
            following = _at(target_values, judge.argmax(-1))
            discount = config.gamma ** batch[N_STEP] * (1.0 - batch[Columns.TERMINATEDS].float())
            target = batch[Columns.REWARDS] + discount * following
        loss_of = (
            functional.huber_loss if config.td_error_loss_fn == "huber" else functional.mse_loss
        )
        loss = (batch[WEIGHTS] * loss_of(taken, target, reduction="none")).mean()
        values = taken.detach()
        if ROWS in batch:
            self.metrics.log_value((module_id, TD_ERROR_KEY), (values - target).abs())
        self.metrics.log_dict(
            {
                dqn.QF_LOSS_KEY: loss.detach(),
                dqn.QF_MEAN_KEY: values.mean,
                dqn.QF_MAX_KEY: values.max,
                dqn.QF_MIN_KEY: values.min,
                dqn.TD_ERROR_MEAN_KEY: lambda: (values - target).abs().mean(),
            },
            key=module_id,
            window=1,
        )
        return loss


def _at(values: Tensor, actions: Tensor) -> Tensor:
    """Returns the values ``[B]`` of actions ``[B]``, of ``[B, num_actions]``."""
    return values.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


class SACLearner(ReachableTargetEntropy, OffPolicyLearner, SACTorchLearner):
    """RLlib's learner; each loss has its gradient by its optimizer's parameters alone."""

    last_update_ts_by_mid: defaultdict[str, int]

    def register_optimizer(self, *, optimizer: Any, params: Any, **how: Any) -> None:
        optimizer = FusedAdam(params, optimizer.defaults["eps"])
        super().register_optimizer(optimizer=optimizer, params=params, **how)

    def compute_loss_for_module(self, *, fwd_out: dict[str, Tensor], **what: Any) -> Tensor:
        """RLlib's, which reads a second critic's values of discrete actions without one, too."""
        fwd_out.setdefault(sac.QF_TWIN_PREDS, fwd_out[sac.QF_PREDS])
        loss: Tensor = super().compute_loss_for_module(fwd_out=fwd_out, **what)
        return loss

    def losses_of(self, module_id: str, loss: Tensor) -> Iterator[tuple[Tensor, Sequence[str]]]:
        for name, _ in self.get_optimizers_for_module(module_id):
            yield self._temp_losses.pop((module_id, f"{name}_loss")), (name,)
