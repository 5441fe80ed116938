"""An own RLModule: a policy and a value on a small shared network.

In a config: ``algorithm: RLLIB_PPO`` or ``RLLIB_IMPALA``, ``rl_module:
muxrl.experiments.examples.own_module:SharedTrunk``, and its settings under ``model``.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn


class SharedTrunk(TorchRLModule, ValueFunctionAPI):
    """One hidden layer of ``width`` (32) units, and a head each for policy and value.

    Observations are ``[B, obs]``, or ``[B, T, obs]`` in a learner's padded batch; discrete actions.
    """

    def setup(self) -> None:
        width = self.model_config.get("width", 32)
        num_inputs = self.observation_space.shape[0]
        self.trunk = nn.Sequential(nn.Linear(num_inputs, width), nn.Tanh())
        self.policy = nn.Linear(width, int(self.action_space.n))
        self.value = nn.Linear(width, 1)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features = self.trunk(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Returns the values ``[B]``."""
        features = self.trunk(batch[Columns.OBS]) if embeddings is None else embeddings
        return self.value(features).squeeze(-1)
