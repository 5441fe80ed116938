"""Observations that come with an action mask apart: 1 for each action that is available."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

OBS = "obs"
ACTION_MASK = "action_mask"


def masked_space(observation_space: spaces.Space, action_space: spaces.Space) -> spaces.Dict:
    """Returns the observation space of a module that has masks.

    Raises:
        TypeError: the actions are not Discrete or MultiDiscrete.
    """
    if isinstance(action_space, spaces.Discrete):
        num_actions = int(action_space.n)
    elif isinstance(action_space, spaces.MultiDiscrete):
        # RLlib's logits are those of the choices, one after another, as a mask's numbers are.
        num_actions = int(action_space.nvec.sum())
    else:
        raise TypeError(f"an action mask is for choices among actions, not for {action_space}")
    mask = spaces.Box(0.0, 1.0, (num_actions,), np.float32)
    return spaces.Dict({OBS: observation_space, ACTION_MASK: mask})


def has_action_mask(observation_space: spaces.Space | None) -> bool:
    """Returns whether a module's observations come with an action mask."""
    return isinstance(observation_space, spaces.Dict) and ACTION_MASK in observation_space.spaces


def check_maskable(action_space: spaces.Space) -> None:
    """Raises `ValueError` unless actions of this space can be masked."""
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
        raise ValueError(
            f"an action mask says which of n actions are available, but the action space is "
            f"{action_space}; it must be Discrete or MultiDiscrete"
        )
