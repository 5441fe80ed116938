"""The values of actions in numpy, of RLlib's default network of DQN; see `numpy_mlp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule

from muxrl.protocol.dense import forward
from muxrl.servers.agents.masks import ACTION_MASK, OBS
from muxrl.servers.rllib.numpy_mlp import mlp_layers

Values = Callable[[Any], np.ndarray]
"""From observations to values ``[B, n]``, float32; minus infinity of unavailable actions."""


def numpy_values(module: Any) -> Values | None:
    """Returns what computes a module's values on its ``acting_keys``, if it has some.

    It reads the parameters through views, so it follows weights that are loaded in place.

    Args:
        module: any RLModule. Of RLlib's default class, or of one that says ``acts_by_values`` of
            itself; not of classes below these.

    Returns:
        None for other modules, for distributions of values, and where the encoder is no MLP.
    """
    of_class = type(module)
    if of_class is not DefaultDQNTorchRLModule and "acts_by_values" not in vars(of_class):
        return None
    if module.num_atoms > 1 or any(p.device.type != "cpu" for p in module.parameters()):
        return None
    advantage = mlp_layers(module.encoder, module.af)
    state_value = mlp_layers(module.encoder, module.vf) if module.uses_dueling else None
    if advantage is None:
        return None

    def values(obs: Any) -> np.ndarray:
        seen = obs[OBS] if isinstance(obs, dict) else obs
        of_actions = forward(advantage, seen)
        if state_value is not None:  # Wang et al. 2016, arXiv 1511.06581, equation 9
            of_actions -= of_actions.mean(axis=-1, keepdims=True)
            of_actions += forward(state_value, seen)
        if isinstance(obs, dict):
            of_actions[obs[ACTION_MASK] <= 0] = -np.inf
        return of_actions

    return values
