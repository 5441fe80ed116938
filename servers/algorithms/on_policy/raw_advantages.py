"""Advantages that are not standardised, from the pipeline that RLlib has for recurrent modules."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing


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


def keep_advantages_raw(pipeline: ConnectorPipelineV2) -> None:
    """Puts `RawAdvantageEstimation` in the place of RLlib's GAE, if that is in the pipeline."""
    for connector in pipeline.connectors:
        if type(connector) is GeneralAdvantageEstimation:
            raw = RawAdvantageEstimation(gamma=connector.gamma, lambda_=connector.lambda_)
            pipeline.insert_after(GeneralAdvantageEstimation, raw)
            pipeline.remove(GeneralAdvantageEstimation)
            return
