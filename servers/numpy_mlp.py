"""The forward pass of RLlib's default small networks in numpy, for the step path.

Acting for a few agents is a handful of products of tiny matrices, and torch takes about 10 µs
to begin each of them. Numpy computes the same numbers at a fraction of that. It is used where a
module is RLlib's default MLP policy on the CPU; all others go through their own ``forward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchMLPHead
from torch import nn

from muxrl.servers.algorithms.action_masks import (
    ACTION_MASK,
    UNAVAILABLE,
    MaskablePPOTorchRLModule,
)

MAX_BATCH = 64
"""Rows up to which numpy wins; torch's kernels are faster beyond."""

Forward = Callable[[Any], np.ndarray]
"""Stacked observations, an array or a dict of them, to distribution inputs."""

_KNOWN_FORWARDS = (DefaultPPOTorchRLModule._forward, MaskablePPOTorchRLModule._forward)

_ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], Any]] = {
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0.0, out=x),
    nn.Identity: lambda x: x,
}


def is_pi_of_encoder(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a module's ``_forward`` that is ``pi(encoder(obs))``, so that numpy may replace it.

    ``obs`` are the module's `acting_keys` in a row but for the action mask, which masks the logits.
    An override of the method is not decorated, so it is not replaced.
    """
    forward.is_pi_of_encoder = True  # type: ignore[attr-defined]
    return forward


def numpy_policy(module: Any) -> Forward | None:
    """Returns observations ``[B, obs]`` to action distribution inputs ``[B, k]``, float32 both.

    Where the module's observations are Dicts (action masks, MAPPO), the function takes a dict of
    the stacked parts that the module acts on, its ``acting_keys``.

    The arrays inside are views of the module's parameters, so weights that are loaded in place
    need no notice.

    Args:
        module: any RLModule.

    Returns:
        None where the module is not one whose forward pass is known exactly: another class, an
        override of its forward pass, a recurrent or convolutional encoder, a GPU.
    """
    forward_of_class = getattr(type(module), "_forward", None)
    is_known = (
        (forward_of_class in _KNOWN_FORWARDS or hasattr(forward_of_class, "is_pi_of_encoder"))
        and not module.is_stateful()
        and all(parameter.device.type == "cpu" for parameter in module.parameters())
    )
    if not is_known:
        return None
    encoder = getattr(module.encoder, "actor_encoder", None) or getattr(
        module.encoder, "encoder", module.encoder
    )
    if not isinstance(encoder, TorchMLPEncoder) or type(module.pi) is not TorchMLPHead:
        return None
    keys: tuple[str, ...] | None = getattr(module, "acting_keys", None)
    if keys is None:
        return _numpy_mlp(encoder, module.pi)
    inputs = tuple(key for key in keys if key != ACTION_MASK)
    mlp = _numpy_mlp(encoder, module.pi)
    if mlp is None:
        return None

    def forward(obs: dict[str, np.ndarray]) -> np.ndarray:
        parts = [obs[key] for key in inputs]
        logits = mlp(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1))
        if ACTION_MASK in keys:
            logits[obs[ACTION_MASK] <= 0] = UNAVAILABLE
        return logits

    return forward


def _numpy_mlp(encoder: TorchMLPEncoder, head: TorchMLPHead) -> Forward | None:
    """Returns the two networks as one function of ``[B, obs]``, None if a layer is unknown."""
    layers: list[tuple[np.ndarray, np.ndarray | None] | Callable[[np.ndarray], Any]] = []
    for network in (encoder.net.mlp, head.net.mlp):
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
