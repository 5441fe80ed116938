"""The forward pass of RLlib's default small networks in numpy, for the step path.

Acting for a few agents takes a handful of products of tiny matrices, and torch takes about 10 µs
to start each of them. For RLlib's default MLP policy on the CPU, numpy computes the same numbers
at a fraction of that; every other module goes through its own ``forward``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchMLPHead
from torch import nn

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.dense import forward as dense_forward
from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.agents.masks import ACTION_MASK, OBS
from muxrl.servers.rllib.action_masks import MaskablePPOTorchRLModule

MAX_BATCH = 64
"""Rows up to which numpy is faster than torch."""

Forward = Callable[[Any], np.ndarray]
"""Stacked observations, an array or a dict of them, to distribution inputs."""

_KNOWN_FORWARDS = (DefaultPPOTorchRLModule._forward, MaskablePPOTorchRLModule._forward)

_ACTIVATIONS: dict[type[nn.Module], Literal["none", "tanh", "relu"]] = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.Identity: "none",
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

    The function reads the module's parameters through views, so it follows weights that are loaded
    in place.

    Args:
        module: any RLModule.

    Returns:
        None for a module whose forward pass is not known exactly: another class, an overridden
        forward pass, a recurrent or convolutional encoder, or parameters on a GPU.
    """
    layers = dense_layers(module)
    if layers is None:
        return None
    mlp = functools.partial(dense_forward, layers)
    keys: tuple[str, ...] | None = getattr(module, "acting_keys", None)
    if keys is None:
        return mlp
    inputs = tuple(key for key in keys if key != ACTION_MASK)

    def forward(obs: dict[str, np.ndarray]) -> np.ndarray:
        parts = [obs[key] for key in inputs]
        logits = mlp(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1))
        if ACTION_MASK in keys:
            logits[obs[ACTION_MASK] <= 0] = UNAVAILABLE
        return logits

    return forward


def dense_layers(module: Any) -> list[DenseLayer] | None:
    """Returns the layers from a module's observation to its distribution inputs.

    Their arrays are views of the module's parameters. None: as for `numpy_policy`.
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
    return mlp_layers(encoder, module.pi)


def mlp_network(module: Any) -> PolicyNetwork | None:
    """Returns what acts in `dense_layers`; None: as there."""
    layers = dense_layers(module)
    keys = getattr(module, "acting_keys", None)
    if layers is None or (keys is not None and keys[0] != OBS):
        return None
    return PolicyNetwork([*layers])


def mlp_layers(encoder: Any, head: Any) -> list[DenseLayer] | None:
    """Returns the layers of one of RLlib's encoders and the head after it, as views.

    None: they are no MLPs of Linear layers, tanh and ReLU.
    """
    if not isinstance(encoder, TorchMLPEncoder) or type(head) is not TorchMLPHead:
        return None
    layers: list[DenseLayer] = []
    for layer in (*encoder.net.mlp, *head.net.mlp):
        if isinstance(layer, nn.Linear):
            bias = None if layer.bias is None else layer.bias.detach().numpy()
            layers.append(DenseLayer(layer.weight.detach().numpy().T, bias))
        elif type(layer) in _ACTIVATIONS and layers and layers[-1].activation == "none":
            layers[-1].activation = _ACTIVATIONS[type(layer)]
        else:
            return None
    return layers
