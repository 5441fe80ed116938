"""The three parts of an actor-critic loss, added up and logged under RLlib's names."""

from __future__ import annotations

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY as VF_EXPLAINED_VAR,
)
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.utils.torch_utils import explained_variance
from torch import Tensor


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
