"""Proximal policy optimisation: RLlib's algorithm and loss, with a lean update around them."""

from __future__ import annotations

from ray.rllib.algorithms.ppo.ppo import PPOConfig as RLlibPPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from muxrl.servers.algorithms.on_policy import LeanUpdate


class LeanPPOTorchLearner(LeanUpdate, PPOTorchLearner):
    """RLlib's learner, with `LeanUpdate` for modules without a state."""


class PPOConfig(RLlibPPOConfig):
    """RLlib's PPO, Schulman et al. 2017 (arXiv 1707.06347), with another learner.

    Advantages are standardised over a batch's transitions. (RLlib includes the step that it adds
    to every piece of an episode to compute the bootstrap value.)
    """

    def get_default_learner_class(self) -> type:
        return LeanPPOTorchLearner
