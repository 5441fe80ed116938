"""The values of actions in numpy, of RLlib's default network of DQN; see `numpy_mlp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from torch import nn

from muxrl.protocol.dense import forward
from muxrl.protocol.messages import DenseLayer
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.rllib.numpy_mlp import mlp_layers

Values = Callable[[Any], np.ndarray]
"""From observations to values ``[B, n]``, float32; minus infinity of unavailable actions."""


class ValueLayers(NamedTuple):
    """A network of values; its arrays are views of the module's parameters.

    With two heads ``Q = V + A - mean(A)`` (Wang et al. 2016, arXiv 1511.06581, equation 9).
    """

    shared: Sequence[DenseLayer]
    advantage: Sequence[DenseLayer]
    """``A``; of a network without dueling ``Q``."""
    state_value: Sequence[DenseLayer] | None
    """``V``; None without dueling."""


def value_layers(module: Any) -> ValueLayers | None:
    """Returns the layers of a module's values.

    Args:
        module: any RLModule. Of RLlib's default class, or of one that says ``acts_by_values`` of
            itself; not of classes below these.

    Returns:
        None for other modules, for distributions of values, where the encoder is no MLP, and for
        parameters on a GPU.
    """
    of_class = type(module)
    if of_class is not DefaultDQNTorchRLModule and "acts_by_values" not in vars(of_class):
        return None
    if module.num_atoms > 1 or any(p.device.type != "cpu" for p in module.parameters()):
        return None
    layers = mlp_layers(module.encoder, module.af)
    if layers is None:
        return None
    num_shared = len(layers) - sum(isinstance(layer, nn.Linear) for layer in module.af.net.mlp)
    state_value = None
    if module.uses_dueling:
        with_value = mlp_layers(module.encoder, module.vf)
        assert with_value is not None, "both heads are of one config"
        state_value = with_value[num_shared:]
    return ValueLayers(layers[:num_shared], layers[num_shared:], state_value)


def numpy_values(module: Any) -> Values | None:
    """Returns what computes a module's values on its ``acting_keys``, if it has some.

    It follows weights that are loaded in place. None: as for `value_layers`.
    """
    layers = value_layers(module)
    if layers is None:
        return None
    shared, advantage, state_value = layers

    def values(obs: Any) -> np.ndarray:
        hidden = forward(shared, obs[OBS] if isinstance(obs, dict) else obs)
        of_actions = forward(advantage, hidden)
        if state_value is not None:
            of_actions -= of_actions.mean(axis=-1, keepdims=True)
            of_actions += forward(state_value, hidden)
        if isinstance(obs, dict):
            of_actions[obs[ACTION_MASK] <= 0] = -np.inf
        return of_actions

    return values
