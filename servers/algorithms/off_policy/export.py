"""DQN's network as a graph to export."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.core.columns import Columns
from torch import Tensor

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.export.graph import PolicyGraph, ServerRow


class ValueGraph(PolicyGraph):
    """The action of the highest value; the values are an output, the mean of the atoms if any.

    An unavailable action's is the lowest float32, as of a logit; the module's is minus infinity.
    """

    scores = "q_values"

    def decide(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor, Any]:
        values = _values(self.module, batch)
        return values.argmax(-1), values, None

    def server_scores(self, module: Any, row: ServerRow, agent_id: str) -> np.ndarray:
        obs = tree.map_structure(lambda x: torch.from_numpy(x[None]), row.observation)
        with torch.inference_mode():
            return _values(module, {Columns.OBS: obs})[0].numpy()


def _values(module: Any, batch: dict[str, Any]) -> Tensor:
    values: Tensor = module.compute_q_values(batch)[QF_PREDS]
    return values.clamp(min=UNAVAILABLE)
