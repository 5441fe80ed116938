"""A2C's loss and advantages."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from muxrl.servers.algorithms.on_policy import (
    LeanUpdate,
    actor_critic_loss,
    advantages_of_own_actions,
)


class RawAdvantageEstimation(GeneralAdvantageEstimation):
    """RLlib's GAE without the standardisation at its end.

    RLlib standardises in place and keeps neither mean nor deviation. Its value targets are raw,
    though, and the advantage is by definition the target minus the value. That takes one more pass
    of the value network, but no copy of the connector's code.
    """

    def __call__(
        self, *, rl_module: MultiRLModule, batch: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        batch = super().__call__(rl_module=rl_module, batch=batch, **kwargs)
        for module_id, module_batch in batch.items():
            module = rl_module[module_id]
            if not isinstance(module.unwrapped(), ValueFunctionAPI):
                continue
            with torch.no_grad():
                values = module.unwrapped().compute_values(module_batch)
            module_batch[Postprocessing.ADVANTAGES] = (
                module_batch[Postprocessing.VALUE_TARGETS] - values
            )
        return batch


class A2CTorchLearner(LeanUpdate, PPOTorchLearner):
    """``-log pi(a|s) A + c_v (V(s) - R)^2 - c_e H(pi)``, averaged over the batch.

    The env runners need not record ``action_logp`` and ``action_dist_inputs``; without the former,
    all actions are taken for the policy's own. Padding, and the
    bootstrap step that RLlib appends to each chunk, are masked out.
    """

    def build(self) -> None:
        self.should_standardize_advantages = self.config.standardize_advantages
        super().build()
        connectors = self._learner_connector
        if self.is_lean or connectors is None or self.should_standardize_advantages:
            return
        for connector in connectors.connectors:
            if type(connector) is GeneralAdvantageEstimation:
                raw = RawAdvantageEstimation(gamma=connector.gamma, lambda_=connector.lambda_)
                connectors.insert_after(GeneralAdvantageEstimation, raw)
                connectors.remove(GeneralAdvantageEstimation)
                return

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """The loss above; Mnih et al. 2016, section 4 ("Asynchronous advantage actor-critic").

        No gradient flows through the advantages. ``entropy_coeff`` may be a schedule.
        """
        module = self.module[module_id].unwrapped()
        mask = batch.get(Columns.LOSS_MASK)

        def mean(x: Tensor) -> Tensor:
            return x.mean() if mask is None else x[mask].mean()

        distribution = module.get_train_action_dist_cls().from_logits(
            fwd_out[Columns.ACTION_DIST_INPUTS]
        )
        values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        returns = batch[Postprocessing.VALUE_TARGETS]
        log_probability = distribution.logp(batch[Columns.ACTIONS])
        policy_loss = -mean(log_probability * advantages_of_own_actions(batch))
        return actor_critic_loss(
            self,
            module_id,
            config,
            policy_loss=policy_loss,
            vf_loss=mean((values - returns).square()),
            entropy=mean(distribution.entropy()),
            values=values if mask is None else values[mask],
            targets=returns if mask is None else returns[mask],
        )
