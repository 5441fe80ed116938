"""Networks built from settings: encoders of arrays and images, LSTMs, heads.

They equal RLlib's default modules with the same settings. `dense_layers` returns the layers of
networks that numpy can compute as well: to act, for clients, pools and files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.messages import DenseLayer
from muxrl.servers.algorithms.settings.model import ModelSettings, activation_of, initializer_of

_BOARD_SIZE = 10
"""Longest side, in cells, that is read without a stride."""
_LARGE_SIZE = 64
_KNOWN_IMAGES: dict[int, list[list[Any]]] = {
    96: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 2]],
    84: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]],
    64: [[16, [4, 4], 2], [32, [4, 4], 2], [64, [4, 4], 2], [128, [4, 4], 2]],
    42: [[16, [4, 4], 2], [32, [4, 4], 2], [256, [11, 11], 1]],
    10: [[16, [5, 5], 2], [32, [5, 5], 2]],
}
"""RLlib's filters for square images of these sides."""
_ACTIVATIONS: dict[type[nn.Module], Literal["tanh", "relu"]] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def initialize(module: nn.Module, model: ModelSettings, prefix: str) -> None:
    """Initializes the parameters of a layer.

    Args:
        module: the layer.
        model: the settings.
        prefix: of the settings to use: ``fcnet``, ``conv``, ``head_fcnet`` or ``lstm``.
    """
    for name, parameter in module.named_parameters():
        setting = f"{prefix}_{'bias' if 'bias' in name else 'kernel'}_initializer"
        if (maker := initializer_of(getattr(model, setting))) is not None:
            maker(parameter, **(getattr(model, f"{setting}_kwargs") or {}))


def mlp(model: ModelSettings, prefix: str, num_inputs: int) -> list[nn.Module]:
    """Returns the hidden layers of an encoder (``fcnet``) or of a head (``head_fcnet``)."""
    activation = activation_of(getattr(model, f"{prefix}_activation"))
    layers: list[nn.Module] = []
    for num in getattr(model, f"{prefix}_hiddens"):
        layers.append(nn.Linear(num_inputs, num))
        initialize(layers[-1], model, prefix)
        if getattr(model, f"{prefix}_use_layernorm"):
            layers.append(nn.LayerNorm(num, eps=0.001))
        if activation is not None:
            layers.append(activation())
        num_inputs = num
    return layers


def head(
    model: ModelSettings, num_inputs: int, num_outputs: int, *, initializes_last: bool = False
) -> nn.Sequential:
    """Returns the layers from an encoder's features to the outputs.

    Args:
        model: the settings.
        num_inputs: number of features.
        num_outputs: number of outputs.
        initializes_last: whether the last layer has the initializer of the hidden layers; else
            torch's.
    """
    hidden = mlp(model, "head_fcnet", num_inputs)
    size = model.head_fcnet_hiddens[-1] if model.head_fcnet_hiddens else num_inputs
    last = nn.Linear(size, num_outputs)
    if initializes_last:
        initialize(last, model, "head_fcnet")
    return nn.Sequential(*hidden, last)


class Pixels(nn.Module):
    """Convolutions from images ``[B, H, W, C]`` to features ``[B, size]``."""

    def __init__(self, model: ModelSettings, shape: tuple[int, ...]) -> None:
        super().__init__()
        filters = model.conv_filters or convolutions_for(shape)
        activation = activation_of(model.conv_activation)
        layers: list[nn.Module] = []
        height, width, channels = shape
        for out, kernel, stride, *padding in filters:
            kernel, stride = (
                [one, one] if isinstance(one, int) else one for one in (kernel, stride)
            )
            if padding != ["valid"]:  # "same": as many outputs as size / stride, rounded up
                around: list[int] = []
                for side, k, s in ((width, kernel[1], stride[1]), (height, kernel[0], stride[0])):
                    more = max((math.ceil(side / s) - 1) * s + k - side, 0)
                    around += [more // 2, more - more // 2]
                layers.append(nn.ZeroPad2d((around[0], around[1], around[2], around[3])))
                height, width = math.ceil(height / stride[0]), math.ceil(width / stride[1])
            else:
                height = (height - kernel[0]) // stride[0] + 1
                width = (width - kernel[1]) // stride[1] + 1
            if min(height, width) < 1:
                raise ValueError(f"conv_filters leave nothing of an image of {list(shape)}")
            layers.append(nn.Conv2d(channels, out, tuple(kernel), tuple(stride)))
            initialize(layers[-1], model, "conv")
            if activation is not None:
                layers.append(activation())
            channels = out
        self.net = nn.Sequential(*layers, nn.Flatten())
        self.size = channels * height * width

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images.movedim(-1, -3))


def convolutions_for(shape: tuple[int, ...]) -> list[list[Any]]:
    """Returns `conv_filters` for an image or a board, channels last, of any size.

    These are RLlib's, if it has some for the size. Otherwise strides reduce the image to at most
    ten cells a side, and a last layer, as large as what is left, makes 256 features.
    """
    sides = list(shape[:2])
    if sides[0] == sides[1] and sides[0] in _KNOWN_IMAGES:
        return _KNOWN_IMAGES[sides[0]]
    filters: list[list[Any]] = []
    while max(sides) > _BOARD_SIZE:
        kernel, stride = (8, 4) if max(sides) > _LARGE_SIZE else (4, 2)
        filters.append([16 if not filters else 32, [kernel, kernel], stride])
        sides = [math.ceil(side / stride) for side in sides]
    if not filters:
        filters.append([32, [3, 3], 1])
    return [*filters, [64, [3, 3], 1], [256, sides, 1, "valid"]]


class Encoder(nn.Module):
    """Encodes observations as features ``[..., size]``.

    Args:
        model: the settings.
        shape: of an observation, one or three dimensions.
    """

    def __init__(self, model: ModelSettings, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._num_dims = len(shape)
        if self._num_dims == 3:
            pixels = Pixels(model, shape)
            self.layers, self.size = nn.Sequential(pixels), pixels.size
        else:
            self.layers = nn.Sequential(*mlp(model, "fcnet", math.prod(shape)))
            self.size = model.fcnet_hiddens[-1] if model.fcnet_hiddens else math.prod(shape)
        self.lstm: nn.LSTM | None = None
        if model.use_lstm:
            self.lstm = nn.LSTM(self.size, model.lstm_cell_size, batch_first=True)
            initialize(self.lstm, model, "lstm")
            self.size = model.lstm_cell_size

    def forward(self, obs: Tensor) -> Tensor:
        """Returns features ``[B, size]`` of observations ``[B, ...]``, without an LSTM."""
        return self.layers(obs)

    def unroll(self, obs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns features ``[B, T, size]`` of sequences ``[B, T, ...]``, and the state after them.

        Args:
            obs: the sequences.
            h, c: state before the sequences, ``[B, size]``.
        """
        assert self.lstm is not None
        lead = obs.shape[: obs.dim() - self._num_dims]
        tokens = self.layers(obs.flatten(0, 1)).unflatten(0, lead)
        features, (h, c) = self.lstm(tokens, (h.unsqueeze(0), c.unsqueeze(0)))
        return features, h.squeeze(0), c.squeeze(0)


def joined(parts: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Concatenates some parts of observations, arrays or tensors; a single one is not copied."""
    if len(keys) == 1:
        return parts[keys[0]]
    some = [parts[key] for key in keys]
    return np.concatenate(some, -1) if isinstance(some[0], np.ndarray) else torch.cat(some, -1)


class ParallelMLP(nn.Module):
    """K networks of Linear layers with ReLU between them, computed at once.

    Parameters are initialized as in `torch.nn.Linear`: uniform in ``+-1 / sqrt(inputs)``.

    Args:
        num: K.
        dims: sizes of the input, the hidden layers and the output.
    """

    def __init__(self, num: int, dims: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(dims):
            bound = inputs**-0.5
            for store, rows in ((self.weights, inputs), (self.biases, 1)):
                store.append(nn.Parameter(torch.empty(num, rows, outputs).uniform_(-bound, bound)))

    def forward(self, x: Tensor, num: int | None = None) -> Tensor:
        """Returns the outputs of all networks, ``[K, B, outputs]``.

        Args:
            x: ``[B, inputs]``.
            num: K, to compute only the first networks; None: all.
        """
        x = x.expand(num or len(self.weights[0]), *x.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias[:num], x if layer == 0 else torch.relu(x), weight[:num])
        return x


def dense_layers(*parts: nn.Module) -> list[DenseLayer] | None:
    """Returns the layers of modules in a chain; their arrays are views of the parameters.

    None: the modules are no chain of Linear layers, tanh and ReLU on the CPU.
    """
    layers: list[DenseLayer] = []
    for part in parts:
        for layer in part.modules() if isinstance(part, nn.Sequential) else (part,):
            if isinstance(layer, nn.Sequential):
                continue
            if isinstance(layer, nn.Linear) and layer.weight.device.type == "cpu":
                bias = None if layer.bias is None else layer.bias.detach().numpy()
                layers.append(DenseLayer(layer.weight.detach().numpy().T, bias))
            elif type(layer) in _ACTIVATIONS and layers and layers[-1].activation == "none":
                layers[-1].activation = _ACTIVATIONS[type(layer)]
            else:
                return None
    return layers
