"""Action masks for policies: an unavailable action has probability 0.

RLlib's default modules flatten a Dict observation together with its mask, and may choose actions
that the mask forbids. Here the logits of unavailable actions are set to the lowest float32: their
probability and their share of the entropy are exactly 0, log-probabilities are those of the
distribution that actions are drawn from, and no gradient reaches a masked logit (Huang and Ontañón
2022, "A Closer Look at Invalid Action Masking in Policy Gradient Algorithms", arXiv 2006.14171).
Masks are applied alike in acting and learning, so that PPO's ratio is 1 for unchanged weights.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import spaces
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import DefaultAPPOTorchRLModule
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.dqn_catalog import DQNCatalog
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac import sac_learner as sac
from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from torch import Tensor

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.masks import has_action_mask

_CRITIC_ENCODER = "encoder.critic_encoder"


def unmasked(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns a batch whose observations have no masks, as the networks read them."""
    obs = batch[Columns.OBS]
    return {**batch, Columns.OBS: obs[OBS]} if isinstance(obs, dict) else batch


def masked(
    outputs: dict[str, Any],
    batch: dict[str, Any],
    key: str = Columns.ACTION_DIST_INPUTS,
    lowest: float = UNAVAILABLE,
) -> dict[str, Any]:
    """Returns a module's outputs, with `lowest` in ``outputs[key] [..., n]`` where a mask is 0.

    Without masks in the batch's observations the outputs stay as they are.
    """
    obs = batch[Columns.OBS]
    if not isinstance(obs, dict):
        return outputs
    return {**outputs, key: torch.where(obs[ACTION_MASK] > 0, outputs[key], lowest)}


class ReadsNoMask:
    """Mixin for one of RLlib's catalogs, whose networks then read observations without masks."""

    def __init__(self, observation_space: Any, **more: Any) -> None:
        if has_action_mask(observation_space):
            observation_space = observation_space[OBS]
        super().__init__(observation_space=observation_space, **more)  # type: ignore[call-arg]


class FollowsMask:
    """Mixin for one of RLlib's default modules, which then follows action masks, if there are any.

    If observations have a mask, the networks read only ``OBS``, and ``ACTION_MASK [B, n]``, 1 for
    available actions, is applied to their outputs. With any other observation space nothing
    changes.
    """

    maskable_catalog: ClassVar[type]

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, catalog_class=catalog_class or self.maskable_catalog, **kwargs)  # type: ignore[call-arg]

    def setup(self: Any) -> None:
        is_masked = has_action_mask(self.observation_space)
        if is_masked and not isinstance(self.action_space, spaces.Discrete | spaces.MultiDiscrete):
            raise ValueError(
                f"an action mask says which of n actions are available, but the action space is "
                f"{self.action_space}; it must be Discrete or MultiDiscrete"
            )
        super().setup()  # type: ignore[misc]


class MaskablePPOCatalog(ReadsNoMask, PPOCatalog):
    """RLlib's catalog; see `ReadsNoMask`."""


class MaskablePPOTorchRLModule(FollowsMask, DefaultPPOTorchRLModule):
    """RLlib's default module of PPO and IMPALA; see `FollowsMask`.

    Recurrent networks (``use_lstm``) work as without masks. When acting, RLlib records the critic's
    recurrent state, with which the learner begins sequences in mid-episode, but it does not send
    the critic's weights there: the state would be that of a critic that never learned.
    """

    maskable_catalog = MaskablePPOCatalog

    def get_non_inference_attributes(self) -> list[str]:
        """Returns RLlib's names, without the encoder of a recurrent critic."""
        names: list[str] = super().get_non_inference_attributes()
        return [n for n in names if n != _CRITIC_ENCODER] if self.is_stateful() else names

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return masked(super()._forward(unmasked(batch), **kwargs), batch)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return masked(super()._forward_train(unmasked(batch), **kwargs), batch)

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Returns RLlib's values; the critic does not read the mask."""
        return super().compute_values(unmasked(batch), embeddings)


class MaskableDQNCatalog(ReadsNoMask, DQNCatalog):
    """RLlib's catalog; see `ReadsNoMask`."""


class MaskableDQNTorchRLModule(FollowsMask, DefaultDQNTorchRLModule):
    """RLlib's default module of DQN; see `FollowsMask`.

    The value of an unavailable action is minus infinity, both of the network and of its target, so
    that no argmax in RLlib's loss chooses it.
    """

    maskable_catalog = MaskableDQNCatalog

    def _forward_exploration(self, batch: dict[str, Any], t: int) -> dict[str, Any]:
        """Acts epsilon-greedily, and draws all available actions with the same probability.

        RLlib's own method takes actions of value 0 for unavailable: it never draws them, and raises
        if all values are 0.
        """
        values = self.compute_q_values(batch)[QF_PREDS]
        self.epsilon_schedule.update(t)
        epsilon = self.epsilon_schedule.get_current_value()
        greedy = self.get_exploration_action_dist_cls().from_logits(values).to_deterministic()
        any_action = torch.multinomial((values != -torch.inf).float(), 1).squeeze(-1)
        is_random = torch.rand(len(values), device=values.device) < epsilon
        return {Columns.ACTIONS: torch.where(is_random, any_action, greedy.sample())}

    def _qf_forward_helper(self, batch: dict[str, Any], *networks: Any) -> dict[str, Any]:
        outputs = super()._qf_forward_helper(unmasked(batch), *networks)
        return masked(outputs, batch, QF_PREDS, -torch.inf)


class MaskableSACCatalog(ReadsNoMask, SACCatalog):
    """RLlib's catalog; see `ReadsNoMask`."""


class MaskableSACTorchRLModule(FollowsMask, DefaultSACTorchRLModule):
    """RLlib's default module of SAC; see `FollowsMask`.

    An unavailable action has probability 0, so that its value does not count in ``V = sum over a
    of pi(a) (Q(a) - alpha log pi(a))`` (Christodoulou 2019, arXiv 1910.07207, eq. 10), in the
    policy's loss, or in the entropy by which alpha is adjusted.
    """

    maskable_catalog = MaskableSACCatalog

    def _forward_inference(self, batch: dict[str, Any]) -> dict[str, Any]:
        return masked(super()._forward_inference(unmasked(batch)), batch)

    def _qf_forward_train_helper(
        self, batch: dict[str, Any], *networks: Any, squeeze: bool = True
    ) -> Tensor:
        return super()._qf_forward_train_helper(unmasked(batch), *networks, squeeze=squeeze)

    def _forward_train_discrete(self, batch: dict[str, Any]) -> dict[str, Any]:
        # RLlib takes the logarithm of probabilities, so that its loss is NaN if one underflows.
        current = {Columns.OBS: batch[Columns.OBS]}
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        probs, log_probs = self._policy(current)
        next_probs, next_log_probs = self._policy(following)
        outputs = {
            sac.ACTION_PROBS: probs,
            sac.ACTION_LOG_PROBS: log_probs,
            sac.ACTION_PROBS_NEXT: next_probs,
            sac.ACTION_LOG_PROBS_NEXT: next_log_probs,
            sac.QF_TARGET_NEXT: self.forward_target(following, squeeze=False),
            sac.QF_PREDS: self._qf_forward_train_helper(
                current, self.qf_encoder, self.qf, squeeze=False
            ),
        }
        if self.twin_q:
            outputs[sac.QF_TWIN_PREDS] = self._qf_forward_train_helper(
                current, self.qf_twin_encoder, self.qf_twin, squeeze=False
            )
        return outputs

    def _policy(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Returns probabilities and log-probabilities, ``[B, n]`` each; both 0 where unavailable.

        Real log-probabilities of unavailable actions would overflow for alpha above 1, and 0 times
        infinity is NaN.
        """
        logits = self._forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        log_probs = torch.log_softmax(logits, -1)
        probs = log_probs.exp()
        if isinstance(obs := batch[Columns.OBS], dict):
            log_probs = torch.where(obs[ACTION_MASK] > 0, log_probs, 0.0)
        return probs, log_probs


class MaskableAPPOTorchRLModule(MaskablePPOTorchRLModule, DefaultAPPOTorchRLModule):
    """RLlib's default module of APPO; see `FollowsMask`. Its target policy follows masks, too."""

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns RLlib's outputs, with the logits of unavailable actions masked."""
        outputs = super().forward_target(unmasked(batch))
        return masked(outputs, batch, TARGET_NETWORK_ACTION_DIST_INPUTS)
