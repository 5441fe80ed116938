"""The forward pass of RLlib's default small networks in numpy, for the step path.

Acting for a few agents takes a handful of products of tiny matrices, and torch takes about 10 µs
to start each of them. For RLlib's default MLP policy on the CPU, numpy computes the same numbers
at a fraction of that; every other module goes through its own ``forward``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchMLPHead
from torch import nn

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.protocol.dense import forward as dense_forward
from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.rllib.action_masks import MaskablePPOTorchRLModule

MAX_BATCH = 64
"""Rows up to which numpy is faster than several threads of torch; than one it is no slower."""

_KNOWN_FORWARDS = (DefaultPPOTorchRLModule._forward, MaskablePPOTorchRLModule._forward)

_MAX_KNOWN = 16
"""Selections of a `Stack` that are kept: most turns have those of the turn before."""

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


@dataclass(frozen=True)
class NumpyPolicy:
    """From observations ``[B, obs]`` to action distribution inputs ``[B, k]``, float32 both.

    Attributes:
        layers: one after another.
        keys: of the parts of a Dict observation that it acts on, of which it then takes a dict;
            None: it takes an array.
    """

    layers: Sequence[DenseLayer]
    keys: tuple[str, ...] | None

    def __call__(self, obs: Any) -> np.ndarray:
        if self.keys is None:
            return dense_forward(self.layers, obs)
        parts = [obs[key] for key in self.keys if key != ACTION_MASK]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        logits = dense_forward(self.layers, x)
        if ACTION_MASK in self.keys:
            logits[obs[ACTION_MASK] <= 0] = UNAVAILABLE
        return logits

    @property
    def form(self) -> Any:
        """Equal for policies that differ in their numbers alone."""
        layers = [(one.weight.shape, one.bias is None, one.activation) for one in self.layers]
        return self.keys, tuple(layers)


class Stack:
    """Policies of one form in one array, so that several can be asked at once.

    Args:
        policies: they are copied.
    """

    def __init__(self, policies: Sequence[NumpyPolicy]) -> None:
        self._keys = policies[0].keys
        layers = zip(*(policy.layers for policy in policies), strict=True)
        # In torch's order, as the modules have them: in another BLAS may round otherwise.
        self._layers = [
            (
                np.stack([one.weight.T for one in of_all]),
                None if of_all[0].bias is None else np.stack([one.bias for one in of_all]),
                of_all[0].activation,
            )
            for of_all in layers
        ]
        self._known: dict[tuple[int, ...], NumpyPolicy] = {}

    def of(self, places: tuple[int, ...]) -> NumpyPolicy:
        """Returns some of the policies as one, of ``[m, B, obs]`` to ``[m, B, k]``."""
        if places not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            which = np.array(places)
            layers = [
                DenseLayer(
                    weight[which].transpose(0, 2, 1),
                    None if bias is None else bias[which][:, None],
                    activation,
                )
                for weight, bias, activation in self._layers
            ]
            self._known[places] = NumpyPolicy(layers, self._keys)
        return self._known[places]


def numpy_policy(module: Any) -> NumpyPolicy | None:
    """Returns what acts in place of a module, on its ``acting_keys`` if it has some.

    It reads the module's parameters through views, so it follows weights that are loaded in place.

    Args:
        module: any RLModule.

    Returns:
        None for a module whose forward pass is not known exactly: another class, an overridden
        forward pass, a recurrent or convolutional encoder, or parameters on a GPU.
    """
    layers = dense_layers(module)
    return None if layers is None else NumpyPolicy(layers, getattr(module, "acting_keys", None))


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
