"""Action masks for policies: an unavailable action has probability 0.

RLlib's default modules flatten a Dict observation together with its mask, and may choose what the
mask forbids. Here the logits of unavailable actions are set to the lowest float32: their
probability and their share of the entropy are exactly 0, log-probabilities are those of the
distribution that actions are drawn from, and no gradient reaches a masked logit (Huang and Ontañón
2022, "A Closer Look at Invalid Action Masking in Policy Gradient Algorithms", arXiv 2006.14171).
Acting and learning mask alike, so that PPO's ratio is 1 where nothing has changed.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from torch import Tensor

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.masks import has_action_mask

_CRITIC_ENCODER = "encoder.critic_encoder"


def mask_logits(logits: Tensor, mask: Tensor, lowest: float = UNAVAILABLE) -> Tensor:
    """Returns ``logits [..., n]`` with `lowest` where ``mask [..., n]`` is 0."""
    return torch.where(mask > 0, logits, lowest)


def unmasked(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns a batch with the observations that the networks read, without their masks."""
    obs = batch[Columns.OBS]
    return {**batch, Columns.OBS: obs[OBS]} if isinstance(obs, dict) else batch


def masked(logits: Tensor, batch: dict[str, Any], lowest: float = UNAVAILABLE) -> Tensor:
    """As `mask_logits`, by the masks of a batch's observations; without masks all stay."""
    obs = batch[Columns.OBS]
    return mask_logits(logits, obs[ACTION_MASK], lowest) if isinstance(obs, dict) else logits


def check_maskable(action_space: spaces.Space) -> None:
    """Raises `ValueError` unless actions of this space can be masked."""
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
        raise ValueError(
            f"an action mask says which of n actions are available, but the action space is "
            f"{action_space}; it must be Discrete or MultiDiscrete"
        )


class ReadsNoMask:
    """Goes before one of RLlib's catalogs: its networks are for observations without masks."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        model_config_dict: dict[str, Any],
    ) -> None:
        if has_action_mask(observation_space):
            observation_space = observation_space[OBS]  # type: ignore[index]
        super().__init__(observation_space, action_space, model_config_dict)  # type: ignore[call-arg]


class FollowsMask:
    """Goes before one of RLlib's default modules, which then follows masks where there are any.

    Where observations have a mask apart, the networks read ``OBS``, and ``ACTION_MASK
    [B, n]``, 1 for available actions, masks what they say of actions. With any other space it is
    RLlib's module.
    """

    maskable_catalog: ClassVar[type]
    acting_keys: tuple[str, ...] | None
    """The keys of observations with a mask, None without one."""

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, catalog_class=catalog_class or self.maskable_catalog, **kwargs)  # type: ignore[call-arg]

    def setup(self: Any) -> None:
        is_masked = has_action_mask(self.observation_space)
        if is_masked:
            check_maskable(self.action_space)
        self.acting_keys = (OBS, ACTION_MASK) if is_masked else None
        super().setup()  # type: ignore[misc]


class MaskablePPOCatalog(ReadsNoMask, PPOCatalog):
    """RLlib's catalog; see `ReadsNoMask`."""


class MaskablePPOTorchRLModule(FollowsMask, DefaultPPOTorchRLModule):
    """RLlib's default module of PPO and IMPALA; see `FollowsMask`.

    Recurrent networks (``use_lstm``) work as without masks. RLlib records their critic's state
    where actions are chosen, for the sequences that a learner begins in mid-episode, and yet sends
    none of the critic's weights there: it would be the state of a critic that never learned.
    """

    maskable_catalog = MaskablePPOCatalog

    def get_non_inference_attributes(self) -> list[str]:
        """RLlib's, without the encoder of a recurrent critic."""
        names: list[str] = super().get_non_inference_attributes()
        return [n for n in names if n != _CRITIC_ENCODER] if self.is_stateful() else names

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return _with_masked_logits(super()._forward(unmasked(batch), **kwargs), batch)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return _with_masked_logits(super()._forward_train(unmasked(batch), **kwargs), batch)

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """RLlib's; the critic does not read the mask."""
        return super().compute_values(unmasked(batch), embeddings)


def _with_masked_logits(outputs: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
    outputs[Columns.ACTION_DIST_INPUTS] = masked(outputs[Columns.ACTION_DIST_INPUTS], batch)
    return outputs
