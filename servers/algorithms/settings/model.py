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
    """Discount of each step's reward."""
    grad_clip: Limit = None
    """Largest norm of the gradient; None: no clip."""
    min_sample_timesteps_per_iteration: int = 0
    """Env steps per training record, at least."""
    min_time_s_per_iteration: NotNegative | None = None
    """Seconds per training record, at least."""


class ModelSettings(Settings):
    """Network settings, as RLlib's ``DefaultModelConfig`` calls them."""

    fcnet_hiddens: list[int] = [64, 64]
    """Units of each layer of the encoder."""
    fcnet_activation: str = "tanh"
    """`tanh`, `relu`, `elu`, `silu` (`swish`) or `linear`, or a class of `torch.nn`."""
    fcnet_kernel_initializer: Initializer = None
    """What weights begin with: a function of `torch.nn.init`; None: torch's own."""
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    fcnet_bias_initializer: Initializer = None
    """Likewise, of biases."""
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    fcnet_use_layernorm: bool = False
    """Whether layers are normalised before their activation."""
    conv_filters: list[Any] | None = None
    """Of images `[channels, kernel, stride]` of each layer, perhaps with `"valid"`; None: by
    size."""
    conv_activation: str = "relu"
    """As `fcnet_activation`."""
    conv_kernel_initializer: Initializer = None
    """As `fcnet_kernel_initializer`."""
    conv_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    conv_bias_initializer: Initializer = None
    """As `fcnet_bias_initializer`."""
    conv_bias_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    head_fcnet_hiddens: list[int] = []
    """Units of each hidden layer of the heads."""
    head_fcnet_activation: str = "relu"
    """As `fcnet_activation`."""
    head_fcnet_kernel_initializer: Initializer = None
    """As `fcnet_kernel_initializer`."""
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    head_fcnet_bias_initializer: Initializer = None
    """As `fcnet_bias_initializer`."""
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    head_fcnet_use_layernorm: bool = False
    """As `fcnet_use_layernorm`."""
    free_log_std: bool = False
    """Whether the deviation of continuous actions is one for all observations."""
    log_std_clip_param: float = 20.0
    """Largest magnitude of its logarithm."""
    vf_share_layers: bool = False
    """Whether the policy and the value share the encoder."""
    use_lstm: bool = False
    """Whether an LSTM follows the encoder."""
    max_seq_len: int = 20
    """Steps of the sequences that it learns from."""
    lstm_cell_size: int = 256
    """Its units."""
    lstm_kernel_initializer: Initializer = None
    """As `fcnet_kernel_initializer`."""
    lstm_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""
    lstm_bias_initializer: Initializer = None
    """As `fcnet_bias_initializer`."""
    lstm_bias_initializer_kwargs: dict[str, Any] | None = None
    """Its arguments."""

    def validate(self) -> None:
        super().validate()
        for prefix in ("fcnet", "conv", "head_fcnet"):
            name = getattr(self, f"{prefix}_activation")
            if name.lower() not in ACTIVATIONS:
                activation_of(name)
        for prefix in ("fcnet", "conv", "head_fcnet", "lstm"):
            for kind in ("kernel", "bias"):
                initializer_of(getattr(self, f"{prefix}_{kind}_initializer"))


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
