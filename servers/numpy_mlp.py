"""The forward pass of RLlib's default small networks in numpy, for the step path.

Acting for a few agents is a handful of products of tiny matrices, and torch takes about 10 µs
to begin each of them. Where a module is RLlib's default MLP policy, on the CPU, the same numbers
come from numpy at a fraction of that; every other module goes through its own ``forward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchMLPHead
from torch import nn

MAX_BATCH = 64
"""Rows up to which numpy wins; torch's kernels are faster beyond."""

Forward = Callable[[np.ndarray], np.ndarray]

_ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], Any]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0.0, out=x),
    nn.Identity: lambda x: x,
}


def numpy_policy(module: Any) -> Forward | None:
    """Returns observations ``[B, obs]`` to action distribution inputs ``[B, k]``, float32 both.

    The arrays inside are views of the module's parameters, so weights that are loaded in place
    need no notice.

    Args:
        module: any RLModule.

    Returns:
        None where the module is not one whose forward pass is known exactly: another class, an
        override of its forward pass, a recurrent or convolutional encoder, a GPU.
    """
    is_known = (
        isinstance(module, DefaultPPOTorchRLModule)
        and type(module)._forward is DefaultPPOTorchRLModule._forward
        and not module.is_stateful()
        and all(parameter.device.type == "cpu" for parameter in module.parameters())
    )
    if not is_known:
        return None
    encoder = getattr(module.encoder, "actor_encoder", None) or getattr(
        module.encoder, "encoder", None
    )
    if not isinstance(encoder, TorchMLPEncoder) or type(module.pi) is not TorchMLPHead:
        return None
    layers: list[tuple[np.ndarray, np.ndarray | None] | Callable[[np.ndarray], Any]] = []
    for network in (encoder.net.mlp, module.pi.net.mlp):
        for layer in network:
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else layer.bias.detach().numpy()
                layers.append((layer.weight.detach().numpy().T, bias))
            elif type(layer) in _ACTIVATIONS:
                layers.append(_ACTIVATIONS[type(layer)])
            else:
                return None

    def forward(x: np.ndarray) -> np.ndarray:
        for layer in layers:
            if isinstance(layer, tuple):
                weight, bias = layer
                x = x @ weight
                if bias is not None:
                    x += bias
            else:
                layer(x)
        return x

    return forward
