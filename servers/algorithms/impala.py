"""IMPALA and APPO on a policy server: RLlib's losses and networks, without RLlib's asynchrony.

RLlib's IMPALA samples, batches and learns in separate processes and threads, so that none of them
waits. A policy server does so already: it serves while it learns, and V-trace corrects for samples
of older weights. RLlib's asynchrony on top would only add lag (weights come one update late, after
every second update) and a third thread. Here a batch is learned when it arrives, and the new
weights are in use at once.

IMPALA: Espeholt et al. 2018 (arXiv 1802.01561). APPO, as RLlib has it, is IMPACT: Luo et al. 2020
(arXiv 1912.00167), PPO's clipped ratio against a target policy, with V-trace.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.appo import appo as rllib_appo
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import (
    DefaultAPPOTorchRLModule,
)
from ray.rllib.algorithms.impala import impala as rllib_impala
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import Tensor

from muxrl.servers.agents.seating import MASKED_AGENTS
from muxrl.servers.algorithms.declared_settings import ActorCriticSettings, Share, configured_by
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.algorithms.sound_updates import SoundUpdates
from muxrl.servers.rllib.action_masks import MaskablePPOTorchRLModule, masked, unmasked


class _InPlaceConfig(ActorCriticSettings):
    """Makes the learner a part of this process."""

    min_time_s_per_iteration = None
    min_sample_timesteps_per_iteration = 1_000

    rollout_fragment_length: int
    """Steps after which V-trace restarts from the value function."""
    vtrace_clip_pg_rho_threshold: float
    """Largest weight of V-trace in the policy's gradient."""
    vtrace_clip_rho_threshold: float
    """Largest weight of V-trace in the correction of values."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.num_learners = 0
        self.num_env_runners = 0
        self.use_env_runner_state_server = False
        # RLlib compares this to its count of steps since it last sent weights before it raises
        # that count, so that 1 would be every second step.
        self.broadcast_interval = 0


class IMPALAConfig(_InPlaceConfig, rllib_impala.IMPALAConfig):
    """RLlib's, run in this process."""


class APPOConfig(_InPlaceConfig, rllib_appo.APPOConfig):
    """RLlib's, run in this process."""

    circular_buffer_iterations_per_batch: int
    """Updates on each batch."""
    clip_param: float
    """Clip range of the probability ratio."""
    kl_coeff: float
    """Weight of the KL penalty; it adapts."""
    kl_target: float
    """KL divergence that the weight is adapted to."""
    target_network_update_freq: int
    """Batches between two updates of the target policy, each counted with its updates."""
    tau: Share
    """How far the target policy moves towards the policy then."""
    use_kl_loss: bool
    """Whether there is a KL penalty to the target policy."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)
        # Batches are learned as they come; more would only lengthen the target's interval.
        self.circular_buffer_num_batches = 1


class MaskableAPPOTorchRLModule(MaskablePPOTorchRLModule, DefaultAPPOTorchRLModule):
    """RLlib's default module of APPO, which follows masks; its target policy, too."""

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """RLlib's, with the logits of unavailable actions masked."""
        outputs = super().forward_target(unmasked(batch))
        key = TARGET_NETWORK_ACTION_DIST_INPUTS
        return {**outputs, key: masked(outputs[key], batch)}


class IMPALALearner(SoundUpdates, IMPALATorchLearner):
    """IMPALA's loss, with V-trace; updates in the calling thread, which RLlib leaves to another.

    V-trace keeps its bootstrap values. RLlib appends a step to every chunk whose value stands for
    all that was cut off, but computes that step's own correction with a discount of 0, so that
    ``vs = V + rho * (0 - V)``, which is 0 with rho = 1, and nothing is bootstrapped at cuts and
    time limits. Here an infinite behaviour probability makes that step's rho exactly 0, however
    dense the policy is, and ``vs = V``, as the paper has it for the last state (Espeholt et al.
    2018, section 4.1).
    """

    def build(self) -> None:
        super().build()
        self.shutdown()  # the learner thread, before it has seen anything
        # At the interpreter's exit RLlib stops it again if it is still set, and APPO's buffer
        # raises when it is stopped twice.
        self._learner_thread = None

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
        # Of APPO alone: K of the paper's circular buffer.
        num_updates = getattr(self.config, "circular_buffer_iterations_per_batch", 1)
        for i in range(num_updates):
            results = Learner.update(
                self,
                training_data=TrainingData(batch=batch),
                timesteps=timesteps,
                _no_metrics_reduce=i < num_updates - 1,
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

    def compute_loss_for_module(
        self, *, batch: dict[str, Any], fwd_out: dict[str, Any], **kwargs: Any
    ) -> Tensor:
        """RLlib's loss with its bootstrap values kept, as above."""
        logp, is_appended = batch[Columns.ACTION_LOGP], ~batch[Columns.LOSS_MASK].bool()
        batch = {**batch, Columns.ACTION_LOGP: logp.masked_fill(is_appended, torch.inf)}
        # Its action is the last one's, and may be masked in several parts: -inf times 0 is NaN.
        inputs = fwd_out[Columns.ACTION_DIST_INPUTS].masked_fill(is_appended[..., None], 0.0)
        fwd_out = {**fwd_out, Columns.ACTION_DIST_INPUTS: inputs}
        return super().compute_loss_for_module(batch=batch, fwd_out=fwd_out, **kwargs)


class APPOLearner(IMPALALearner, APPOTorchLearner):
    """APPO's loss, with V-trace."""


@configured_by(IMPALAConfig, IMPALALearner)
class IMPALA(rllib_impala.IMPALA):
    """See `IMPALAConfig`."""


IMPALA_ENTRY = AlgorithmEntry(
    name="IMPALA",
    summary="actor-critic corrected for lag by V-trace (Espeholt et al. 2018)",
    learns_from="recent",
    training=TrainingSettings(IMPALAConfig),
    networks=Networks(module=MaskablePPOTorchRLModule),
    seating=MASKED_AGENTS,
)


@configured_by(APPOConfig, APPOLearner)
class APPO(rllib_appo.APPO):
    """See `APPOConfig`."""


APPO_ENTRY = AlgorithmEntry(
    name="APPO",
    summary="PPO's ratio against a target policy, with V-trace (Luo et al. 2020)",
    learns_from="recent",
    training=TrainingSettings(APPOConfig),
    networks=Networks(module=MaskableAPPOTorchRLModule),
    seating=MASKED_AGENTS,
)
