"""The learners of IMPALA and APPO: RLlib's losses, updated in place when a batch comes.

Two things differ from RLlib's learners. There is no learner thread (see `impala`). And V-trace
keeps its bootstrap values: RLlib appends a step to every chunk whose value stands for all that was
cut off, but computes that step's own correction with a discount of 0, so that
``vs = V + rho * (0 - V)``, which is 0 with rho = 1, and nothing is bootstrapped at cuts and time
limits. Here an infinite behaviour probability makes that step's rho exactly 0, however dense the
policy is, and ``vs = V``, as the paper has it for the last state (Espeholt et al. 2018, section
4.1).
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import Tensor


class _InPlace(IMPALATorchLearner):
    """Updates in the calling thread, which RLlib's learners leave to a thread of their own."""

    def build(self) -> None:
        super().build()
        self.shutdown()  # the learner thread, before it has seen anything
        # At the interpreter's exit RLlib stops it again if it is still set, and APPO's buffer
        # raises when it is stopped twice.
        self._learner_thread = None

    @property
    def num_updates_per_batch(self) -> int:
        """How many updates each batch gets."""
        return 1

    def update(
        self,
        training_data: TrainingData,
        *,
        timesteps: dict[str, Any],
        return_state: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Learns a batch and returns metrics and, if asked for, the new weights."""
        training_data.solve_refs()
        batch = self._make_batch_if_necessary(training_data=training_data)
        results: dict[str, Any] = {}
        for i in range(self.num_updates_per_batch):
            is_last = i == self.num_updates_per_batch - 1
            results = Learner.update(
                self,
                training_data=TrainingData(batch=batch),
                timesteps=timesteps,
                _no_metrics_reduce=not is_last,
                **kwargs,
            )
        if return_state:
            state = self.get_state(
                components=[
                    f"{COMPONENT_RL_MODULE}/{module_id}"
                    for module_id in self.module.keys()  # noqa: SIM118
                    if self.should_module_be_updated(module_id)
                ],
                inference_only=True,
            )
            results["_rl_module_state_after_update"] = {
                COMPONENT_RL_MODULE: state[COMPONENT_RL_MODULE],
                WEIGHTS_SEQ_NO: state[WEIGHTS_SEQ_NO],
            }
        return results

    def compute_loss_for_module(self, *, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """RLlib's loss with its bootstrap values kept; see this module's docstring."""
        logp, mask = batch[Columns.ACTION_LOGP], batch[Columns.LOSS_MASK]
        batch = {**batch, Columns.ACTION_LOGP: logp.masked_fill(~mask.bool(), torch.inf)}
        return super().compute_loss_for_module(batch=batch, **kwargs)


class IMPALALearner(_InPlace):
    """IMPALA's loss, with V-trace."""


class APPOLearner(_InPlace, APPOTorchLearner):
    """APPO's loss, with V-trace."""

    @property
    def num_updates_per_batch(self) -> int:
        """How many updates each batch gets: K of the paper's circular buffer."""
        return int(self.config.circular_buffer_iterations_per_batch)
