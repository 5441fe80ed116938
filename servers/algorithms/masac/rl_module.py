"""A team's RLModule: an actor that draws from squashed Gaussians, and two critics."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian
from torch import Tensor

from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.joint_critics.rl_module import JointCriticRLModule

LOGP = "logp"


class MASACTorchRLModule(JointCriticRLModule):
    """It draws from each member's squashed Gaussian (RLlib's, as for SAC), or acts by its mean.

    The actor's outputs are means and log-deviations before ``tanh``, ``[B, n, 2 d]``.
    """

    algorithm = "MASAC"
    outputs_per_dimension = 2

    def sample_actions(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Draws actions, differentiable (Haarnoja et al. 2018, arXiv 1812.05905, section 5).

        Args:
            obs: ``[B, n, obs_dim]``.

        Returns:
            Actions ``[B, n, d]``, 0 in dimensions that a member lacks, and each member's
            log-density ``[B, n]`` in -1..1, exact where ``tanh`` saturates.
        """
        actions, logp = self._distribution(obs).rsample_and_logp()
        return actions.squeeze(-1) * self.has_dimension, (logp * self.has_dimension).sum(-1)

    def _distribution(self, obs: Tensor) -> TorchSquashedGaussian:
        # RLlib's adds up log-densities over the last axis. With an axis of one behind the
        # dimensions they stay apart, and those that a member lacks can be left out.
        inputs = self.actor_outputs(obs).unflatten(-1, (2, self.action_dim)).transpose(-1, -2)
        return TorchSquashedGaussian.from_logits(inputs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The current policy's actions at the batch's observations, and their log-densities."""
        actions, logp = self.sample_actions(batch[Columns.OBS][OBS])
        return {Columns.ACTIONS: actions, LOGP: logp}

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        means = self.actor_outputs(batch[Columns.OBS][OBS])[..., : self.action_dim]
        return {Columns.ACTIONS: torch.tanh(means) * self.has_dimension}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        drawn = self._distribution(batch[Columns.OBS][OBS]).sample()
        return {Columns.ACTIONS: drawn.squeeze(-1) * self.has_dimension}
