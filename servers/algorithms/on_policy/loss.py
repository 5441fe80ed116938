"""The three parts of an actor-critic loss, added up and logged under RLlib's names.

Actions that were chosen elsewhere (see `Inference`) have an infinite ``ACTION_LOGP``. A policy
gradient with them would be off-policy: they have no weight in the policy's part of the loss.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY as VF_EXPLAINED_VAR,
)
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.torch_utils import explained_variance
from torch import Tensor


def advantages_of_own_actions(batch: dict[str, Any]) -> Tensor:
    """Returns the advantages ``[B]``, 0 where the action was chosen elsewhere."""
    advantages: Tensor = batch[Postprocessing.ADVANTAGES]
    logp = batch.get(Columns.ACTION_LOGP)
    return advantages if logp is None else advantages.masked_fill(logp.isinf(), 0.0)


def actor_critic_loss(
    learner: PPOTorchLearner,
    module_id: str,
    config: AlgorithmConfig,
    *,
    policy_loss: Tensor,
    vf_loss: Tensor,
    entropy: Tensor,
    values: Tensor,
    targets: Tensor,
) -> Tensor:
    """Returns ``policy_loss + c_v vf_loss - c_e entropy``, where ``c_e`` may be a schedule.

    Args:
        learner: logs the parts, and holds the schedules.
        module_id: whose loss it is.
        config: of that module; has ``vf_loss_coeff``.
        policy_loss, vf_loss, entropy: scalars.
        values, targets: ``[B]``, for the share of the targets' variance that the values explain.
    """
    entropy_coeff = learner.entropy_coeff_schedulers_per_module[module_id].get_current_value()
    learner.metrics.log_dict(
        {
            POLICY_LOSS_KEY: policy_loss.detach(),
            VF_LOSS_KEY: vf_loss.detach(),
            ENTROPY_KEY: entropy.detach(),
            VF_EXPLAINED_VAR: explained_variance(targets, values.detach()),
        },
        key=module_id,
        window=1,
    )
    return policy_loss + config.vf_loss_coeff * vf_loss - entropy_coeff * entropy
