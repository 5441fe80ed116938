"""Base classes of the settings of muxrl's own algorithms and of their networks."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from muxrl.servers.agents.seating import MASKED_AGENTS, Seating
from muxrl.servers.trainers.declared_settings import Limit, NotNegative, Settings, Share

Initializer = str | Callable[..., Any] | None

ACTIVATIONS = {
    "linear": "",
    "tanh": "Tanh",
    "relu": "ReLU",
    "elu": "ELU",
    "silu": "SiLU",
    "swish": "SiLU",
}
"""By RLlib's name of an activation: its class in `torch.nn`."""


class AlgorithmSettings(Settings):
    """The settings that all algorithms have.

    Besides settings a subclass declares the attributes that are read before anything learns, under
    the names of `muxrl.servers.trainers.interface`, since the trainer's own module imports torch.
    """

    is_trusted: ClassVar[bool] = True
    seating: ClassVar[Seating] = MASKED_AGENTS

    gamma: Share = 0.99
    """Discount factor of later rewards, per step."""
    grad_clip: Limit = None
    """Limit on gradients, which are clipped as `grad_clip_by` says; None: they are not clipped."""
    min_sample_timesteps_per_iteration: int = 0
    """Fewest env steps that one training record (iteration) covers."""
    min_time_s_per_iteration: NotNegative | None = None
    """Fewest seconds that one training record (iteration) covers; None: no minimum."""


class ModelSettings(Settings):
    """Network settings, as RLlib's ``DefaultModelConfig`` calls them."""

    fcnet_hiddens: list[int] = [64, 64]
    """Units of each fully connected layer of the encoder of observations that are no images."""
    fcnet_activation: str = "tanh"
    """Activation after each fully connected layer of the encoder: `tanh`, `relu`, `elu`, `silu`
    (`swish`), `linear` (none), or the name of a class in `torch.nn`."""
    fcnet_kernel_initializer: Initializer = None
    """Initializer of the weights of the encoder's fully connected layers: a function of
    `torch.nn.init`, or its name; None: torch's default."""
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `fcnet_kernel_initializer`."""
    fcnet_bias_initializer: Initializer = None
    """Initializer of the biases of the encoder's fully connected layers, given as
    `fcnet_kernel_initializer` is."""
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `fcnet_bias_initializer`."""
    fcnet_use_layernorm: bool = False
    """Whether a layer norm precedes each activation in the encoder's fully connected layers."""
    conv_filters: list[Any] | None = None
    """Convolutions that read images: `[channels, kernel, stride]` for each layer, with `"valid"` as
    a fourth entry for no padding; None: chosen by the size of the image."""
    conv_activation: str = "relu"
    """Activation after each convolution, named as in `fcnet_activation`."""
    conv_kernel_initializer: Initializer = None
    """Initializer of the weights of convolutions, given as `fcnet_kernel_initializer` is."""
    conv_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `conv_kernel_initializer`."""
    conv_bias_initializer: Initializer = None
    """Initializer of the biases of convolutions, given as `fcnet_kernel_initializer` is."""
    conv_bias_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `conv_bias_initializer`."""
    head_fcnet_hiddens: list[int] = []
    """Units of each hidden layer of the heads, between the encoder and the outputs."""
    head_fcnet_activation: str = "relu"
    """Activation after each hidden layer of the heads, named as in `fcnet_activation`."""
    head_fcnet_kernel_initializer: Initializer = None
    """Initializer of the weights of the heads, given as `fcnet_kernel_initializer` is."""
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `head_fcnet_kernel_initializer`."""
    head_fcnet_bias_initializer: Initializer = None
    """Initializer of the biases of the heads, given as `fcnet_kernel_initializer` is."""
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `head_fcnet_bias_initializer`."""
    head_fcnet_use_layernorm: bool = False
    """Whether a layer norm precedes each activation in the heads."""
    free_log_std: bool = False
    """Whether the standard deviation of continuous actions is the same for all observations."""
    log_std_clip_param: float = 20.0
    """Largest absolute value of the logarithm of the standard deviation of continuous actions."""
    vf_share_layers: bool = False
    """Whether the policy and the value function share the encoder."""
    use_lstm: bool = False
    """Whether an LSTM follows the encoder."""
    max_seq_len: int = 20
    """Longest sequence, in steps, that the LSTM learns from."""
    lstm_cell_size: int = 256
    """Units of the LSTM."""
    lstm_kernel_initializer: Initializer = None
    """Initializer of the weights of the LSTM, given as `fcnet_kernel_initializer` is."""
    lstm_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `lstm_kernel_initializer`."""
    lstm_bias_initializer: Initializer = None
    """Initializer of the biases of the LSTM, given as `fcnet_kernel_initializer` is."""
    lstm_bias_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `lstm_bias_initializer`."""

    def validate(self) -> None:
        super().validate()
        for prefix in ("fcnet", "conv", "head_fcnet"):
            name = getattr(self, f"{prefix}_activation")
            if name.lower() not in ACTIVATIONS:
                activation_of(name)
        for prefix in ("fcnet", "conv", "head_fcnet", "lstm"):
            for kind in ("kernel", "bias"):
                initializer_of(getattr(self, f"{prefix}_{kind}_initializer"))


OF_LSTM = frozenset(one for one in ModelSettings.known() if one.startswith(("lstm_", "max_seq_")))
"""Network settings without effect where `use_lstm` is refused."""


def activation_of(name: str) -> Any:
    """Returns the class of an activation, None for "linear".

    Raises:
        ValueError: torch has no activation of that name.
    """
    nn: Any = importlib.import_module("torch.nn")
    if not (known := ACTIVATIONS.get(name.lower(), name)):
        return None
    found = getattr(nn, known, None)
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ValueError(
            f"{name!r} is no activation: {', '.join(ACTIVATIONS)}, or a class of torch.nn"
        )
    return found


def initializer_of(given: Initializer) -> Callable[..., Any] | None:
    """Returns the function that initializes a parameter; None: torch's default.

    Raises:
        ValueError: torch has no such function.
    """
    if given is None or callable(given):
        return given
    found: Callable[..., Any] | None
    found = getattr(importlib.import_module("torch.nn.init"), given.lower(), None)
    if found is None or not given.endswith("_"):
        raise ValueError(f"{given!r} is no function of torch.nn.init that ends with '_'")
    return found
