"""Proximal policy optimisation: RLlib's algorithm and loss, with a lean update around them."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from muxrl.servers.algorithms.action_masks import MaskablePPOTorchRLModule
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.on_policy.config import FORMER_DEFAULTS, OnPolicyConfig, read_limit
from muxrl.servers.algorithms.on_policy.learner import LeanUpdate, advantages_of_own_actions
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.seating import Seating


class LeanPPOTorchLearner(LeanUpdate, PPOTorchLearner):
    """RLlib's learner, with `LeanUpdate` for modules without a state."""

    def compute_loss_for_module(self, *, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """RLlib's loss; actions that were chosen elsewhere have no weight in the policy's part."""
        batch = {**batch, Postprocessing.ADVANTAGES: advantages_of_own_actions(batch)}
        return super().compute_loss_for_module(batch=batch, **kwargs)


class PPOConfig(OnPolicyConfig):
    """RLlib's PPO, Schulman et al. 2017 (arXiv 1707.06347), with another learner.

    Advantages are standardised over a batch's transitions. (RLlib includes the step that it adds
    to every piece of an episode to compute the bootstrap value.)
    """

    def get_default_learner_class(self) -> type:
        return LeanPPOTorchLearner


PPO_ENTRY = AlgorithmEntry(
    name="PPO",
    summary="proximal policy optimisation, RLlib's (Schulman et al. 2017)",
    learns_from="newest",
    training=TrainingSettings(
        PPOConfig,
        former_defaults={**FORMER_DEFAULTS, "vf_clip_param": 10.0},
        readers={"vf_clip_param": read_limit},
    ),
    networks=Networks(module=MaskablePPOTorchRLModule),
    seating=Seating(follows_masks=True),
)
