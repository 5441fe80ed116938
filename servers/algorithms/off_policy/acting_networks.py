"""DQN's and SAC's networks as plain arrays, for clients that act in their place.

Only those of RLlib's default modules and of ours, on the CPU: of any other class the forward pass
is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from torch import nn

from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.algorithms.off_policy.rl_modules import (
    MaskableDQNTorchRLModule,
    MaskableSACTorchRLModule,
)
from muxrl.servers.numpy_mlp import mlp_layers


def actor_network(module: Any) -> PolicyNetwork | None:
    """Returns SAC's policy: logits of Discrete actions. None: its forward pass is not known."""
    if type(module) not in (DefaultSACTorchRLModule, MaskableSACTorchRLModule):
        return None
    layers = mlp_layers(module.pi_encoder, module.pi) if _is_on_cpu(module) else None
    return None if layers is None else PolicyNetwork([*layers])


def value_network(module: Any) -> PolicyNetwork | None:
    """Returns DQN's network of values; None: it is not known, or has atoms.

    A dueling network's two heads become one chain of layers: side by side, and at the end
    ``Q = V + A - mean(A)`` (Wang et al. 2016, arXiv 1511.06581, equation 9), which is linear.
    """
    if type(module) not in (DefaultDQNTorchRLModule, MaskableDQNTorchRLModule):
        return None
    if module.num_atoms > 1 or not _is_on_cpu(module):
        return None
    layers = mlp_layers(module.encoder, module.af)
    if layers is None or not module.uses_dueling:
        return None if layers is None else PolicyNetwork([*layers])
    values = mlp_layers(module.encoder, module.vf)
    assert values is not None, "both heads are of one config"
    num_shared = len(layers) - sum(isinstance(layer, nn.Linear) for layer in module.af.net.mlp)
    heads = [
        _side_by_side(a, v, is_first=i == 0)
        for i, (a, v) in enumerate(zip(layers[num_shared:], values[num_shared:], strict=True))
    ]
    num_actions = layers[-1].weight.shape[1]
    centred = np.eye(num_actions, dtype=np.float32) - np.float32(1 / num_actions)
    combined = np.concatenate([centred, np.ones((1, num_actions), np.float32)])
    last = heads.pop()
    bias = None if last.bias is None else last.bias @ combined
    heads.append(DenseLayer(last.weight @ combined, bias))
    return PolicyNetwork([*layers[:num_shared], *heads])


def _side_by_side(one: DenseLayer, other: DenseLayer, *, is_first: bool) -> DenseLayer:
    """Returns a layer with the outputs of both, which read the same if they are the first."""
    if is_first:
        weight = np.concatenate([one.weight, other.weight], axis=1)
    else:
        zeros = (
            np.zeros((len(one.weight), other.weight.shape[1]), np.float32),
            np.zeros((len(other.weight), one.weight.shape[1]), np.float32),
        )
        weight = np.block([[one.weight, zeros[0]], [zeros[1], other.weight]])
    bias = None if one.bias is None else np.concatenate([one.bias, other.bias])
    return DenseLayer(weight, bias, one.activation)


def _is_on_cpu(module: Any) -> bool:
    return all(parameter.device.type == "cpu" for parameter in module.parameters())
