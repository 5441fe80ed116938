"""RLlib's recurrent encoders over sequences in which an agent may be absent.

A step at which the agent is absent leaves the encoder's state as it is, as if the agent had not
been recorded there: PPO's agents, which are recorded only where they act, remember likewise. An
encoder takes ``{"obs": [B, T, n], "state_in": {"h", "c"}}``, states of ``[B, layers, cells]``.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from torch import Tensor


def inputs_of(x: Tensor, state: Any) -> dict[str, Any]:
    """Returns an encoder's inputs; `state` is None for one that has none."""
    return {Columns.OBS: x} if state is None else {Columns.OBS: x, Columns.STATE_IN: state}


def advance(encoder: Any, x: Tensor, state: Any, alive: Tensor | None) -> tuple[Tensor, Any]:
    """Goes over sequences step by step, as acting does.

    Args:
        encoder: RLlib's.
        x: ``[B, T, n]``.
        state: before the first step.
        alive: ``[B, T, 1]``, 0 where the agent is absent; None: nowhere.

    Returns:
        Features ``[B, T, cells]``, and the state after the last step. An absent agent's features
        are those of what is given for it, in the state that it has.
    """
    features = []
    for t in range(x.shape[1]):
        outputs = encoder(inputs_of(x[:, t : t + 1], state))
        features.append(outputs[ENCODER_OUT])
        after = outputs[Columns.STATE_OUT]
        if alive is not None:
            is_there = alive[:, t, :, None] > 0
            after = {key: torch.where(is_there, after[key], state[key]) for key in after}
        state = after
    return torch.cat(features, 1), state


def encode(encoder: Any, x: Tensor, state: Any, alive: Tensor | None) -> Tensor:
    """Goes over sequences at once, as learning does; arguments are those of `advance`.

    The steps of each sequence are put into another order, those at which the agent is there first:
    so the encoder goes over these as if there were no others, in one pass.

    Returns:
        Features ``[B, T, cells]``: where the agent is there, those of `advance`; elsewhere they
        mean nothing.
    """
    if alive is None:
        return encoder(inputs_of(x, state))[ENCODER_OUT]
    order = (alive[..., 0] <= 0).int().argsort(dim=1, stable=True)
    features = encoder(inputs_of(x.take_along_dim(order[..., None], 1), state))[ENCODER_OUT]
    back = order.argsort(dim=1)
    return features.take_along_dim(back[..., None], 1)
